/** Chooses the build of torch to install: the package index's, or on Linux without an NVIDIA GPU a CPU build from an index that the user names. Pure. */

/** Where a user finds the address of PyTorch's own index, which this extension does not choose. */
export const ADDRESS_HINT = "the address that pytorch.org shows for pip, Linux and CPU";

/** Return what is wrong with the address of a package index, as a sentence; "" for nothing. */
export function indexProblem(address: string): string {
  try {
    if (new URL(address.trim()).protocol === "https:") return "";
  } catch {
    // Not an address at all.
  }
  return `Enter an address that begins with https://: ${ADDRESS_HINT}`;
}

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

/** A requirements file in two parts: the requirement of torch's CPU build, and all other packages but those of CUDA. */
export interface CpuRequirements {
  torch: string;
  others: string;
}

/** Return the parts of a requirements file in which each package begins a line; undefined without torch in it. */
export function cpuRequirements(requirements: string): CpuRequirements | undefined {
  const version = /^torch==([^\s;\\]+)/m.exec(requirements)?.[1];
  if (version === undefined) return undefined;
  const entries = requirements.split(/\n(?=[A-Za-z0-9])/);
  const others = entries.filter((entry) => !/^(?:torch|triton|(?:nvidia|cuda)-[a-z0-9-]+)==/.test(entry));
  return { torch: `torch==${version}+cpu`, others: `${others.join("\n").trimEnd()}\n` };
}
