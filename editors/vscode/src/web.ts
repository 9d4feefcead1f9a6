/** The extension where the editor is a web page with no machine behind it: it says what it lacks, and does nothing else. */
import * as vscode from "vscode";

const SENTENCE = "dg-lsp runs a program next to your files, and a web page can't: open this folder in VS Code, or in a remote window.";

interface Manifest {
  contributes: { commands: { command: string }[] };
}

export function activate(context: vscode.ExtensionContext): void {
  const item = vscode.window.createStatusBarItem("dgLsp.status", vscode.StatusBarAlignment.Right, 100);
  item.name = "dg-lsp";
  item.text = "$(circle-slash) dg-lsp";
  item.tooltip = SENTENCE;
  item.accessibilityInformation = { label: SENTENCE };
  item.command = "dgLsp.menu";
  item.show();
  context.subscriptions.push(item);
  for (const { command } of (context.extension.packageJSON as Manifest).contributes.commands) {
    context.subscriptions.push(vscode.commands.registerCommand(command, () => vscode.window.showInformationMessage(SENTENCE)));
  }
}
