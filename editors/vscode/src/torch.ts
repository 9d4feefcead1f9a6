/** Chooses the build of torch to install: the package index's, or on Linux without an NVIDIA GPU the CPU build. Pure. */

/** PyTorch's own index of CPU builds. pip asks it beside the user's index, for the pinned version with the pinned hashes. */
export const CPU_INDEX = "https://download.pytorch.org/whl/cpu";

// Made by NVIDIA's driver; the last one is what Windows shares with WSL.
const GPU_FILES = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"];

/** Return whether the package index's torch would bring CUDA, which this machine does not use. */
export function hasUselessCuda(platform: string, exists: (path: string) => boolean): boolean {
  return platform === "linux" && !GPU_FILES.some(exists);
}

/** Return whether the files in an environment's folder of packages include a CPU build of torch; undefined without torch. */
export function hasCpuTorch(files: readonly string[]): boolean | undefined {
  const torch = files.find((file) => /^torch-[^-]+\.dist-info$/.test(file));
  return torch === undefined ? undefined : torch.includes("+cpu");
}

/** Return a requirements file, in which each package begins a line, without torch and the packages of CUDA. */
export function withoutTorch(requirements: string): string {
  const entries = requirements.split(/\n(?=[A-Za-z0-9])/);
  const others = entries.filter((entry) => !/^(?:torch|triton|(?:nvidia|cuda)-[a-z0-9-]+)==/.test(entry));
  return `${others.join("\n").trimEnd()}\n`;
}
