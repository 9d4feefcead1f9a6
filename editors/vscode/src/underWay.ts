/** The running fills, started by a command or from the menu of code actions, so that the user can cancel them. */
import * as vscode from "vscode";

const sources = new Set<vscode.CancellationTokenSource>();

/** Cancel all fills. */
export function cancelFills(): void {
  for (const source of sources) source.cancel();
}

/** Return a fill's result; its token is cancelled when the user ends the fill or the editor cancels its own token. */
export async function whileUnderWay<T>(fill: (token: vscode.CancellationToken) => Promise<T>, editors?: vscode.CancellationToken): Promise<T> {
  const source = new vscode.CancellationTokenSource();
  const listener = editors?.onCancellationRequested(() => {
    source.cancel();
  });
  sources.add(source);
  try {
    return await fill(source.token);
  } finally {
    sources.delete(source);
    listener?.dispose();
    source.dispose();
  }
}
