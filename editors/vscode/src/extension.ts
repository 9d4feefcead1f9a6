/** Wires the parts together; decides nothing. */
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { Doctor } from "./doctor";
import { Drafts } from "./drafts";
import { fillFile, fillHere, regenerate, tell } from "./fill";
import { install } from "./install";
import { serverCommands } from "./protocol";
import { whenPythonChanges } from "./python";
import { FILL_BEHIND, SAMPLE, TYPE_BEHIND } from "./sample";
import { folder, Server } from "./server";
import { strings, withLanguage } from "./settings";
import { StatusItem } from "./statusItem";
import { cancelFills } from "./underWay";
import { Watcher } from "./watcher";

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const output = vscode.window.createOutputChannel("dg-lsp", { log: true });
  const status = new StatusItem();
  const drafts = new Drafts();
  const doctor = new Doctor();
  const watcher = new Watcher();
  const environment = vscode.Uri.joinPath(context.globalStorageUri, "environment").fsPath;
  const server = new Server(environment, output, status, drafts, watcher);
  context.subscriptions.push(output, status, drafts, doctor, watcher, server);

  const command = (name: string, run: () => unknown) => {
    context.subscriptions.push(vscode.commands.registerCommand(name, run));
  };
  const withClient = (name: string, run: (client: LanguageClient) => Promise<void>) => {
    command(name, async () => {
      const client = server.running;
      if (client) await run(client).catch(tell);
    });
  };

  withClient("dgLsp.fillHere", (client) => fillHere(client, ["body", "hole"], "there is nothing to fill here"));
  withClient("dgLsp.fillFile", fillFile);
  withClient("dgLsp.regenerate", regenerate);
  withClient("dgLsp.repair", (client) => fillHere(client, ["repair"], "there is no broken syntax here"));
  withClient("dgLsp.docstring", (client) => fillHere(client, ["docstring"], "there is nothing to document here"));

  command("dgLsp.menu", () => status.offer());
  command("dgLsp.togglePause", togglePause);
  command("dgLsp.toggleLanguage", toggleLanguage);
  command("dgLsp.chooseModel", chooseModel);
  command("dgLsp.showLog", () => {
    output.show();
  });
  command("dgLsp.doctor", () => doctor.run(server.program, folder()));
  command("dgLsp.restart", async () => {
    // With a server that runs, its engine is what hangs; without one, the server is looked for again.
    if (status.status) await vscode.commands.executeCommand(serverCommands.restartEngine);
    else await server.start();
  });
  command("dgLsp.install", async () => {
    if (!(await install(server.environment, output))) return;
    await server.start();
    if (server.program === undefined) {
      void vscode.window.showErrorMessage("dg-lsp was installed, but its program is not there; the log says what pip did");
    }
  });
  command("dgLsp.openCommandSetting", () => vscode.commands.executeCommand("workbench.action.openSettings", "dgLsp.client.command"));
  command("dgLsp.cancel", cancelFills);
  let sample: vscode.TextDocument | undefined;
  command("dgLsp.openSample", async () => {
    sample = await openSample();
    await show(sample, TYPE_BEHIND);
  });
  // The walkthrough is looked at, not the sample, when this is clicked there.
  command("dgLsp.fillSample", async () => {
    if (!sample || sample.isClosed || !sample.getText().includes(`${FILL_BEHIND}...`)) sample = await openSample();
    await show(sample, FILL_BEHIND);
    await vscode.commands.executeCommand("dgLsp.fillHere");
  });

  context.subscriptions.push(
    vscode.workspace.onDidChangeConfiguration(async (event) => {
      if (event.affectsConfiguration("dgLsp.client.command")) await server.start();
    }),
    vscode.workspace.onDidGrantWorkspaceTrust(() => server.start()),
  );
  await server.start();
  context.subscriptions.push(
    await whenPythonChanges(() => {
      if (server.followsPython) void server.start();
    }),
  );
}

/** Nothing is left to do: what `activate` has made is in its subscriptions. */
export function deactivate(): void {
  return;
}

async function togglePause(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const next = settings.get("completion.trigger") === "manual" ? "auto" : "manual";
  await settings.update("completion.trigger", next, whereSet(settings, "completion.trigger"));
}

async function toggleLanguage(): Promise<void> {
  const language = vscode.window.activeTextEditor?.document.languageId;
  if (!language) {
    void vscode.window.showInformationMessage("dg-lsp: open a file in that language first");
    return;
  }
  const name = "completion.disabledLanguages";
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const languages = strings(settings.get(name));
  await settings.update(name, withLanguage(languages, language, !languages.includes(language)), whereSet(settings, name));
}

/** Return which of the settings' files counts for a setting: a change to another would do nothing. */
function whereSet(settings: vscode.WorkspaceConfiguration, name: string): vscode.ConfigurationTarget {
  const { workspaceValue } = settings.inspect(name) ?? {};
  return workspaceValue === undefined ? vscode.ConfigurationTarget.Global : vscode.ConfigurationTarget.Workspace;
}

async function chooseModel(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const current = String(settings.get("engine.model") ?? "embedded");
  const other = "Another…";
  const known = [
    { label: "embedded", detail: "the small model that comes with dg-lsp, for any machine" },
    { label: "google/diffusiongemma-26B-A4B-it", detail: "needs a GPU with 60 GB of memory" },
  ];
  const items = known.some(({ label }) => label === current) ? known : [{ label: current, detail: "used now" }, ...known];
  const picked = await vscode.window.showQuickPick([...items, { label: other, detail: "a model's name or a folder" }], {
    title: "dg-lsp: model",
    placeHolder: `Now: ${current}`,
  });
  if (!picked) return;
  const model =
    picked.label === other ? await vscode.window.showInputBox({ prompt: "A model's name, or a folder", value: current }) : picked.label;
  if (model) await settings.update("engine.model", model, vscode.ConfigurationTarget.Global);
}

async function openSample(): Promise<vscode.TextDocument> {
  return vscode.workspace.openTextDocument({ language: "python", content: SAMPLE });
}

/** Show a document with the cursor behind a text. */
async function show(document: vscode.TextDocument, text: string): Promise<void> {
  const editor = await vscode.window.showTextDocument(document);
  const at = document.positionAt(document.getText().indexOf(text) + text.length);
  editor.selection = new vscode.Selection(at, at);
  editor.revealRange(new vscode.Range(at, at));
}
