/** Reads the progress of an installation from pip's output. Pure. */

export interface Step {
  message: string;
  /** Whether the line begins another package of the list. */
  isNewPackage: boolean;
}

/** Return the number of packages in a requirements file. */
export function countPackages(requirements: string): number {
  return requirements.split("\n").filter((line) => /^[A-Za-z0-9]/.test(line)).length;
}

/** Return the progress in a line of pip's output; undefined for other lines. */
export function stepOf(line: string): Step | undefined {
  const [, packageName] = /^Collecting ([A-Za-z0-9._-]+)/.exec(line) ?? [];
  if (packageName !== undefined) return { message: packageName, isNewPackage: true };
  const [, file, size] = /^\s*Downloading (\S+) \(([\d.]+ [kMG]B)\)/.exec(line) ?? [];
  if (file !== undefined) return { message: `${file.split("-", 1)[0] ?? file}, ${size}`, isNewPackage: false };
  return line.startsWith("Installing collected packages") ? { message: "unpacking", isNewPackage: false } : undefined;
}
