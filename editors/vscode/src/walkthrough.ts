/**
 * Completes steps of the walkthrough: sets the context keys for which its steps in package.json wait.
 *
 * VS Code reads the steps when it first opens the walkthrough, and never completes one whose key is set already. So the keys are
 * set only while a tab is open that may be the walkthrough.
 */
import * as vscode from "vscode";

/** The server has started once; a fill was applied once. */
type Key = "hasServer" | "hasFilled";

const reached = new Set<Key>();

/** Complete the steps that wait for a key, now or when the walkthrough opens. */
export function complete(key: Key): void {
  if (reached.has(key)) return;
  reached.add(key);
  setKeys();
}

/** Set the keys when the walkthrough opens. */
export function watchWalkthrough(): vscode.Disposable {
  return vscode.window.tabGroups.onDidChangeTabs(setKeys);
}

function setKeys(): void {
  // The API gives a tab with the walkthrough no input.
  const isOpen = vscode.window.tabGroups.all.some((group) => group.tabs.some(({ input }) => input === undefined));
  for (const key of reached) void vscode.commands.executeCommand("setContext", `dgLsp.${key}`, isOpen);
}
