/** Lets the user choose a model from the offers of `dg-lsp setup` for this machine, with their cost and quality. */
import { execFile } from "node:child_process";
import * as vscode from "vscode";
import { describeOffer, readOffers, type Offer } from "./offers";
import { setupArguments, type Found } from "./locate";

interface Entry extends vscode.QuickPickItem {
  offer?: Offer;
}

/** Let the user choose a model; the program writes it into the user's configuration file. */
export async function chooseModel(found: Found | undefined, folder: string | undefined, output: vscode.LogOutputChannel): Promise<void> {
  const args = found && setupArguments(found);
  if (!found || !args) {
    void vscode.window.showInformationMessage("dg-lsp: run dg-lsp setup in a terminal to choose a model");
    return;
  }
  const look = { location: vscode.ProgressLocation.Window, title: "dg-lsp: looking for models" };
  const listed = await vscode.window.withProgress(look, () => run(found.command, [...args, "--json"], folder)).then(readOffers, (error: unknown) => error as Error);
  if (listed instanceof Error) {
    output.error(listed.message);
    void vscode.window.showWarningMessage(`dg-lsp: ${listed.message}`);
    return;
  }
  const entries: Entry[] = listed.offers.map((offer) => ({ ...describeOffer(offer, listed.model), offer }));
  const other: Entry = { label: "Another…", detail: "a model's name, a folder, or a server" };
  const picked = await vscode.window.showQuickPick([...entries, other], { title: "dg-lsp: model", placeHolder: `Now: ${listed.model}`, matchOnDetail: true });
  if (!picked) return;
  if (picked.offer && !picked.offer.ready) {
    await showCommands(picked.offer);
    return;
  }
  const model = picked.offer?.model ?? (await vscode.window.showInputBox({ prompt: "A model's name, a folder, or a server", value: listed.model }));
  if (!model) return;
  const trying = { location: vscode.ProgressLocation.Notification, title: `dg-lsp: trying ${model}` };
  try {
    const written = readOffers(await vscode.window.withProgress(trying, () => run(found.command, [...args, "--json", "--yes", model], folder)));
    const problem = [written.overruled, written.trial?.problem].find((each) => each !== undefined && each !== "");
    if (problem !== undefined) void vscode.window.showWarningMessage(`dg-lsp: ${written.file} names ${model} now, but ${problem}`);
    else void vscode.window.showInformationMessage(`dg-lsp: ${model} is used from now on; a sample took ${written.trial?.ms ?? 0} ms`);
  } catch (error) {
    void vscode.window.showWarningMessage(`dg-lsp: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** Show what to run before a model can be chosen. */
async function showCommands(offer: Offer): Promise<void> {
  const copy = "Copy";
  const detail = offer.commands.join("\n");
  const picked = await vscode.window.showInformationMessage(`${offer.title}: run these in a terminal; the last one chooses it.`, { modal: true, detail }, copy);
  if (picked === copy) await vscode.env.clipboard.writeText(detail);
}

function run(command: string, args: string[], cwd: string | undefined): Promise<string> {
  return new Promise((resolve, reject) => {
    execFile(command, args, { cwd, maxBuffer: 1 << 24 }, (error, stdout, stderr) => {
      // Exit code 1 means that the model does not answer, which the output reports.
      if (stdout.trimStart().startsWith("{")) resolve(stdout);
      else reject(new Error(stderr.trim().replace(/^dg-lsp: /, "") || (error?.message ?? "dg-lsp setup said nothing")));
    });
  });
}
