/** The fills that are under way, begun by a command or from the menu of code actions, so that the user can end them. */
import * as vscode from "vscode";

const sources = new Set<vscode.CancellationTokenSource>();

/** End all fills. */
export function cancelFills(): void {
  for (const source of sources) source.cancel();
}

/** Return what a fill comes to; its token is cancelled when the user ends it, or the editor cancels its own. */
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
