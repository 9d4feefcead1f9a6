/** Runs `dg-lsp doctor` and shows its output in a read-only document. */
import { execFile } from "node:child_process";
import * as vscode from "vscode";
import { doctorArguments, type Program } from "./locate";
import { variables } from "./serverProcess";

const SCHEME = "dg-lsp-doctor";
const PAGE = vscode.Uri.from({ scheme: SCHEME, path: "dg-lsp doctor" });
// A language of its own, for which package.json wraps long lines.
const LANGUAGE = "dg-lsp-doctor";

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

  /** Run `doctor` of the program in a folder, and show its output. */
  async run(program: Program | undefined, folder: string | undefined): Promise<void> {
    const progress = { location: vscode.ProgressLocation.Window, title: "Running dg-lsp doctor" };
    this.text = await vscode.window.withProgress(progress, () => doctorOutput(program, folder));
    this.changed.fire(PAGE);
    const page = await vscode.languages.setTextDocumentLanguage(await vscode.workspace.openTextDocument(PAGE), LANGUAGE);
    await vscode.window.showTextDocument(page, { preview: true });
  }
}

function doctorOutput(program: Program | undefined, folder: string | undefined): Promise<string> {
  if (!program) return Promise.resolve("The program dg-lsp was not found; click the item in the status bar to install it.\n");
  const args = doctorArguments(program);
  if (!args) {
    const line = [program.command, ...program.args].join(" ");
    return Promise.resolve(`The server is started with "${line}", which does not end with "serve": run dg-lsp doctor in a terminal.\n`);
  }
  return new Promise((resolve) => {
    // An exit code other than 0 means that the output reports a problem. The folder may have its own settings.
    execFile(program.command, args, { cwd: folder, env: variables() }, (error, stdout, stderr) => {
      resolve(`${stdout}${stderr}` || `dg-lsp doctor could not be run: ${error?.message ?? "it printed nothing"}\n`);
    });
  });
}
