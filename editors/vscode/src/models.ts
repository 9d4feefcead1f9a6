/** Lets the user choose a model from the offers of `dg-lsp setup` for this machine, with their cost and quality. */
import { execFile } from "node:child_process";
import * as vscode from "vscode";
import { describeOffer, readOffers, terminalCommands, type Offer } from "./offers";
import { setupArguments, type Program } from "./locate";
import { variables } from "./serverProcess";

interface Entry extends vscode.QuickPickItem {
  offer?: Offer;
}

/** Let the user choose a model; the program writes it into the user's configuration file. */
export async function chooseModel(program: Program | undefined, folder: string | undefined, output: vscode.LogOutputChannel): Promise<void> {
  const args = program && setupArguments(program);
  if (!program || !args) {
    void vscode.window.showInformationMessage("dg-lsp: run dg-lsp setup in a terminal to choose a model");
    return;
  }
  const searching = { location: vscode.ProgressLocation.Window, title: "dg-lsp: searching for models" };
  const setup = await vscode.window.withProgress(searching, () => run(program.command, [...args, "--json"], folder)).then(readOffers, (error: unknown) => error as Error);
  if (setup instanceof Error) {
    output.error(setup.message);
    void vscode.window.showWarningMessage(`dg-lsp: ${setup.message}`);
    return;
  }
  const entries: Entry[] = setup.offers.map((offer) => ({ ...describeOffer(offer, setup.model), offer }));
  const other: Entry = { label: "Another…", detail: "a folder, a hub id, or a server" };
  const picked = await vscode.window.showQuickPick([...entries, other], { title: "dg-lsp: model", placeHolder: `Now: ${setup.model}`, matchOnDetail: true });
  if (!picked) return;
  if (picked.offer && !picked.offer.ready) {
    await showCommands(picked.offer, program.source === "path" ? ["dg-lsp"] : [program.command, ...args.slice(0, -1)]);
    return;
  }
  const model = picked.offer?.model ?? (await vscode.window.showInputBox({ prompt: "A folder, a hub id, or a server", value: setup.model }));
  if (!model) return;
  const name = model === "auto" ? "the embedded model" : model;
  const trying = { location: vscode.ProgressLocation.Notification, title: `dg-lsp: trying ${name}` };
  try {
    const result = readOffers(await vscode.window.withProgress(trying, () => run(program.command, [...args, "--json", "--yes", model], folder)));
    const problem = result.trial?.problem ?? "";
    const overruled = result.overruled ?? "";
    if (problem !== "") void vscode.window.showWarningMessage(`dg-lsp: ${name} was not chosen: ${problem}`);
    else if (overruled !== "") void vscode.window.showWarningMessage(`dg-lsp: ${result.file} now names ${model}, but ${overruled}`);
    else void vscode.window.showInformationMessage(`dg-lsp: ${name} is used from now on; a sample took ${result.trial?.ms ?? 0} ms`);
  } catch (error) {
    void vscode.window.showWarningMessage(`dg-lsp: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** Show the commands to run before a model can be used; `dgLsp` is the command line of the server's program. */
async function showCommands(offer: Offer, dgLsp: readonly string[]): Promise<void> {
  const copy = "Copy";
  const detail = terminalCommands(offer.commands, dgLsp).join("\n");
  const message = `${offer.title}: run these in a terminal. A server keeps its terminal busy, so run the next one in another. The last one chooses the model.`;
  const picked = await vscode.window.showInformationMessage(message, { modal: true, detail }, copy);
  if (picked === copy) await vscode.env.clipboard.writeText(detail);
}

function run(command: string, args: string[], cwd: string | undefined): Promise<string> {
  return new Promise((resolve, reject) => {
    execFile(command, args, { cwd, env: variables(), maxBuffer: 1 << 24 }, (error, stdout, stderr) => {
      // Exit code 1 means that the model does not respond; the output reports it.
      if (stdout.trimStart().startsWith("{")) resolve(stdout);
      else reject(new Error(stderr.trim().replace(/^dg-lsp: /, "") || (error?.message ?? "dg-lsp setup printed nothing")));
    });
  });
}
