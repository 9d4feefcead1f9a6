/** Runs `dg-lsp doctor` and shows what it says in a page of its own, to be read and copied. */
import { execFile } from "node:child_process";
import * as vscode from "vscode";

const SCHEME = "dg-lsp-doctor";
const PAGE = vscode.Uri.from({ scheme: SCHEME, path: "dg-lsp doctor" });

export class Doctor implements vscode.Disposable {
  private text = "";
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private readonly provider = vscode.workspace.registerTextDocumentContentProvider(SCHEME, {
    onDidChange: this.changed.event,
    provideTextDocumentContent: () => this.text,
  });

  dispose(): void {
    this.provider.dispose();
    this.changed.dispose();
  }

  /** Run the program's doctor, and show the lines it prints. */
  async run(program: string): Promise<void> {
    const progress = { location: vscode.ProgressLocation.Window, title: "Running dg-lsp doctor" };
    this.text = await vscode.window.withProgress(progress, () => said(program));
    this.changed.fire(PAGE);
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(PAGE), { preview: true });
  }
}

function said(program: string): Promise<string> {
  return new Promise((resolve) => {
    // It ends with a code other than 0 where something is missing, and has said so.
    execFile(program, ["doctor"], (error, stdout, stderr) => {
      resolve(`${stdout}${stderr}` || `dg-lsp doctor could not be run: ${error?.message ?? "it said nothing"}\n`);
    });
  });
}
