/** Finds the server's program: the places to search, in order. Pure, except that `exists` is asked about files. */
import * as path from "node:path";

export type Source = "settings" | "python" | "private" | "path";

export interface Found {
  command: string;
  args: string[];
  source: Source;
}

export interface Places {
  /** What the user has named, with arguments; empty for nothing. */
  named: readonly string[];
  /** The interpreter of the Python environment that the user has chosen. */
  python: string | undefined;
  /** The folder of the environment that this extension has made. */
  environment: string;
  /** The directories of PATH. */
  path: readonly string[];
}

/** Return the first program found, or undefined. */
export function locate(places: Places, exists: (file: string) => boolean): Found | undefined {
  const [named, ...args] = places.named;
  if (named !== undefined) return { command: named, args: args.length > 0 ? args : ["serve"], source: "settings" };
  const looked: [Source, string | undefined][] = [
    ["python", places.python === undefined ? undefined : path.dirname(places.python)],
    ["private", scripts(places.environment)],
    ...places.path.map((folder): [Source, string] => ["path", folder]),
  ];
  for (const [source, folder] of looked) {
    if (folder === undefined || !path.isAbsolute(folder)) continue;
    const command = path.join(folder, "dg-lsp");
    if (exists(command)) return { command, args: ["serve"], source };
  }
  return undefined;
}

/** Return the absolute entries of a PATH. A relative one would run what a workspace has in the folder that is open. */
export function absoluteEntries(searchPath: string): string[] {
  return searchPath.split(path.delimiter).filter((entry) => path.isAbsolute(entry));
}

/** Return the folder of an environment's programs. */
export function scripts(environment: string): string {
  return path.join(environment, "bin");
}

/** Return the arguments that run `doctor` of the same program; undefined if its arguments do not end with `serve`. */
export function doctorArguments(found: Found): string[] | undefined {
  return argumentsFor(found, "doctor");
}

/** Return the arguments that run `setup` of the same program; undefined if its arguments do not end with `serve`. */
export function setupArguments(found: Found): string[] | undefined {
  return argumentsFor(found, "setup");
}

function argumentsFor(found: Found, command: string): string[] | undefined {
  return found.args.at(-1) === "serve" ? [...found.args.slice(0, -1), command] : undefined;
}
