/** Keeps track of the running fills, so that the user can cancel them. */
import * as vscode from "vscode";

const sources = new Set<vscode.CancellationTokenSource>();

/** Cancel all fills. */
export function cancelFills(): void {
  for (const source of sources) source.cancel();
}

/** Return a fill's result. Its token is cancelled when the user cancels the fills, or when the editor cancels its own token. */
export async function withCancellation<T>(fill: (token: vscode.CancellationToken) => Promise<T>, editorToken?: vscode.CancellationToken): Promise<T> {
  const source = new vscode.CancellationTokenSource();
  const listener = editorToken?.onCancellationRequested(() => {
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
