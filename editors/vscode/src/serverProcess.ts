/** Starts and ends the server's process. */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import * as vscode from "vscode";
import { childVariables, type Program } from "./locate";

/** Return the variables of each process that the extension starts. An untrusted workspace has no part in them. */
export function variables(): NodeJS.ProcessEnv {
  const folders = vscode.workspace.isTrusted ? [] : (vscode.workspace.workspaceFolders ?? []);
  return childVariables(process.env, folders.map((each) => each.uri.fsPath));
}

/** Start the program in a folder; throw an error that names a program that can't be run. */
export async function launch({ command, args, source }: Program, cwd: string | undefined): Promise<ChildProcess> {
  // Detached, it leads a group of processes, which `kill` ends as a whole.
  const child = spawn(command, args, { cwd, env: variables(), detached: true });
  try {
    await once(child, "spawn");
  } catch (error) {
    const origin = source === "settings" ? ", which the setting dgLsp.client.command names," : "";
    throw new Error(`${command}${origin} can't be run (${(error as NodeJS.ErrnoException).code ?? String(error)})`, { cause: error });
  }
  return child;
}

/** End a process that may answer nothing and handle no signal. The program may be a script that has the server as a child. */
export function kill(child: ChildProcess): void {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  try {
    process.kill(-child.pid, "SIGKILL");
  } catch {
    // It has just ended.
  }
}
