/** Finds the server's program in several places, in order. Pure, apart from the calls of `exists`. */
import * as path from "node:path";

export type Source = "settings" | "python" | "private" | "path";

export interface Program {
  command: string;
  args: string[];
  source: Source;
}

export interface SearchPlaces {
  /** The command line in the settings; empty if there is none. */
  setting: readonly string[];
  /** The interpreter of the selected Python environment. */
  python: string | undefined;
  /** The folder of this extension's private environment. */
  environment: string;
  /** The directories of PATH. */
  path: readonly string[];
}

/** Return the first program found, or undefined. */
export function locate(places: SearchPlaces, exists: (file: string) => boolean): Program | undefined {
  const [program, ...args] = places.setting;
  if (program !== undefined) return { command: program, args: args.length > 0 ? args : ["serve"], source: "settings" };
  const candidates: [Source, string | undefined][] = [
    ["python", places.python === undefined ? undefined : path.dirname(places.python)],
    ["private", scripts(places.environment)],
    ...places.path.map((folder): [Source, string] => ["path", folder]),
  ];
  for (const [source, folder] of candidates) {
    if (folder === undefined || !path.isAbsolute(folder)) continue;
    const command = path.join(folder, "dg-lsp");
    if (exists(command)) return { command, args: ["serve"], source };
  }
  return undefined;
}

/** Return the absolute entries of a PATH that are not in one of these folders. A relative entry means the current folder. */
export function absoluteEntries(searchPath: string, folders: readonly string[] = []): string[] {
  const isIn = (entry: string, folder: string) => path.relative(folder, entry).split(path.sep)[0] !== "..";
  return searchPath.split(path.delimiter).filter((entry) => path.isAbsolute(entry) && !folders.some((folder) => isIn(entry, folder)));
}

/** Return the variables of a process, with which neither a program nor a module is searched in the current folder or in these. */
export function childVariables(variables: NodeJS.ProcessEnv, folders: readonly string[]): NodeJS.ProcessEnv {
  const searched = (name: string) => absoluteEntries(variables[name] ?? "", folders).join(path.delimiter);
  return { ...variables, PATH: searched("PATH"), PYTHONPATH: searched("PYTHONPATH"), PYTHONSAFEPATH: "1" };
}

/** Return the folder of an environment's programs. */
export function scripts(environment: string): string {
  return path.join(environment, "bin");
}

/** Return the arguments that run `doctor` of the same program; undefined if its arguments do not end with `serve`. */
export function doctorArguments(program: Program): string[] | undefined {
  return argumentsFor(program, "doctor");
}

/** Return the arguments that run `setup` of the same program; undefined if its arguments do not end with `serve`. */
export function setupArguments(program: Program): string[] | undefined {
  return argumentsFor(program, "setup");
}

function argumentsFor(program: Program, command: string): string[] | undefined {
  return program.args.at(-1) === "serve" ? [...program.args.slice(0, -1), command] : undefined;
}
