/** Wires the parts together; decides nothing. */
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { Doctor } from "./doctor";
import { Drafts } from "./drafts";
import { fillFile, fillHere, regenerate } from "./fill";
import { install } from "./install";
import { serverCommands } from "./protocol";
import { whenPythonChanges } from "./python";
import { SAMPLE, SAMPLE_LINE } from "./sample";
import { Server } from "./server";
import { withLanguage } from "./settings";
import { StatusItem } from "./statusItem";
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
      if (client) await run(client);
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
  command("dgLsp.doctor", () => doctor.run(server.program ?? "dg-lsp"));
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
  command("dgLsp.openSample", openSample);

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
  await settings.update("completion.trigger", next, vscode.ConfigurationTarget.Global);
}

async function toggleLanguage(): Promise<void> {
  const language = vscode.window.activeTextEditor?.document.languageId;
  if (!language) return;
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const languages = settings.get<string[]>("completion.disabledLanguages", []);
  const next = withLanguage(languages, language, !languages.includes(language));
  await settings.update("completion.disabledLanguages", next, vscode.ConfigurationTarget.Global);
}

async function chooseModel(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const current = settings.get("engine.model", "embedded");
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

async function openSample(): Promise<void> {
  const document = await vscode.workspace.openTextDocument({ language: "python", content: SAMPLE });
  const editor = await vscode.window.showTextDocument(document);
  const at = new vscode.Position(SAMPLE_LINE, 0);
  editor.selection = new vscode.Selection(at, at);
  editor.revealRange(new vscode.Range(at, at));
}
