/** Runs `dg-lsp doctor` and shows what it says in a page of its own, to be read and copied. */
import { execFile } from "node:child_process";
import * as vscode from "vscode";
import { doctorArguments, type Found } from "./locate";

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

  /** Run the doctor of the program that was found, in a folder, and show the lines it prints. */
  async run(found: Found | undefined, folder: string | undefined): Promise<void> {
    const progress = { location: vscode.ProgressLocation.Window, title: "Running dg-lsp doctor" };
    this.text = await vscode.window.withProgress(progress, () => said(found, folder));
    this.changed.fire(PAGE);
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(PAGE), { preview: true });
  }
}

function said(found: Found | undefined, folder: string | undefined): Promise<string> {
  if (!found) return Promise.resolve("The program dg-lsp was not found; a click on the item in the status bar offers to install it.\n");
  const args = doctorArguments(found);
  if (!args) {
    const line = [found.command, ...found.args].join(" ");
    return Promise.resolve(`The server is started with "${line}", which does not end with "serve": run dg-lsp doctor in a terminal.\n`);
  }
  return new Promise((resolve) => {
    // It ends with a code other than 0 where something is missing, and has said so. The folder has settings of its own.
    execFile(found.command, args, { cwd: folder }, (error, stdout, stderr) => {
      resolve(`${stdout}${stderr}` || `dg-lsp doctor could not be run: ${error?.message ?? "it said nothing"}\n`);
    });
  });
}
