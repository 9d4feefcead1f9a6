/** The extension for VS Code on a web page, where the server can't run: every command shows the reason. */
import * as vscode from "vscode";

const REASON = "dg-lsp runs a program next to your files, which a web page can't do. Open this folder in VS Code, or in a remote window.";

interface Manifest {
  contributes: { commands: { command: string }[] };
}

export function activate(context: vscode.ExtensionContext): void {
  const item = vscode.window.createStatusBarItem("dgLsp.status", vscode.StatusBarAlignment.Right, 100);
  item.name = "dg-lsp";
  item.text = "$(circle-slash) dg-lsp";
  item.tooltip = REASON;
  item.accessibilityInformation = { label: REASON };
  item.command = "dgLsp.menu";
  item.show();
  context.subscriptions.push(item);
  for (const { command } of (context.extension.packageJSON as Manifest).contributes.commands) {
    context.subscriptions.push(vscode.commands.registerCommand(command, () => vscode.window.showInformationMessage(REASON)));
  }
}
