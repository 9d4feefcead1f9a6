/** What pip's lines say of how far an installation is. Pure. */

export interface Step {
  message: string;
  /** One of the packages of the list is done with. */
  counts: boolean;
}

/** Return how many packages a requirements file names. */
export function pinned(requirements: string): number {
  return requirements.split("\n").filter((line) => /^[A-Za-z0-9]/.test(line)).length;
}

/** Return what to show for a line of pip's, undefined for one that says nothing of progress. */
export function stepOf(line: string): Step | undefined {
  const [, collected] = /^Collecting ([A-Za-z0-9._-]+)/.exec(line) ?? [];
  if (collected !== undefined) return { message: collected, counts: true };
  const [, file, size] = /^\s*Downloading (\S+) \(([\d.]+ [kMG]B)\)/.exec(line) ?? [];
  if (file !== undefined) return { message: `${file.split("-", 1)[0] ?? file}, ${size}`, counts: false };
  return line.startsWith("Installing collected packages") ? { message: "unpacking", counts: false } : undefined;
}
