/** Creates the parts and connects them. */
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { Doctor } from "./doctor";
import { Drafts } from "./drafts";
import { fillFile, fillHere, isLost, regenerate, showError } from "./fill";
import { install, isCurrent } from "./install";
import { NextEdits } from "./nextEdits";
import { Preview } from "./preview";
import { chooseModel } from "./models";
import { serverCommands } from "./protocol";
import { onPythonChange } from "./python";
import { BEFORE_BODY, SAMPLE, BEFORE_TYPED } from "./sample";
import { folder, Server } from "./server";
import { strings, withLanguage } from "./settings";
import { Snooze } from "./snooze";
import { StatusItem } from "./statusItem";
import { cancelFills } from "./runningFills";
import { watchWalkthrough } from "./walkthrough";
import { Watcher } from "./watcher";

let running: Server | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const output = vscode.window.createOutputChannel("dg-lsp", { log: true });
  const snooze = new Snooze();
  const status = new StatusItem(snooze);
  const drafts = new Drafts();
  const doctor = new Doctor();
  const watcher = new Watcher();
  const preview = new Preview();
  const nextEdits = new NextEdits(snooze);
  const environment = vscode.Uri.joinPath(context.globalStorageUri, "environment").fsPath;
  const bundle = { folder: vscode.Uri.joinPath(context.extensionUri, "server").fsPath, environment };
  const server = new Server(bundle, output, status, drafts, watcher, preview, snooze, nextEdits);
  running = server;
  context.subscriptions.push(output, status, drafts, doctor, watcher, preview, snooze, nextEdits, server, watchWalkthrough());

  const command = (name: string, run: () => unknown) => {
    context.subscriptions.push(vscode.commands.registerCommand(name, run));
  };
  const withClient = (name: string, run: (client: LanguageClient) => Promise<void>) => {
    command(name, async () => {
      const client = server.running;
      if (client) await run(client).catch(showError);
    });
  };

  withClient("dgLsp.fillHere", (client) => fillHere(client, ["body", "hole"], "there is nothing to fill here"));
  withClient("dgLsp.fillFile", fillFile);
  withClient("dgLsp.regenerate", regenerate);
  withClient("dgLsp.repair", (client) => fillHere(client, ["repair"], "there is no broken syntax here"));
  withClient("dgLsp.docstring", (client) => fillHere(client, ["docstring"], "there is nothing to document here"));

  command("dgLsp.menu", () => status.showMenu());
  command("dgLsp.togglePause", togglePause);
  command("dgLsp.toggleLanguage", toggleLanguage);
  command("dgLsp.chooseModel", () => chooseModel(server.program, folder(), output));
  command("dgLsp.reveal", () => watcher.reveal());
  command("dgLsp.goToNextEdit", () => nextEdits.next());
  command("dgLsp.rejectNextEdit", () => nextEdits.reject());
  command("dgLsp.snooze", () => snooze.toggle());
  command("dgLsp.showLog", () => {
    output.show();
  });
  command("dgLsp.doctor", () => doctor.run(server.program, folder()));
  command("dgLsp.restart", async () => {
    // If the server is running, restart the engine. Otherwise search for the server again.
    if (!status.status) {
      await server.start();
      return;
    }
    await vscode.commands.executeCommand(serverCommands.restartEngine).then(undefined, (error: unknown) => {
      // A server that ends meanwhile has a message of its own.
      if (!isLost(error)) throw error;
    });
  });
  command("dgLsp.install", async () => {
    const isInstalled = await install(bundle, output, (isReplaced) => server.prepareInstallation(isReplaced));
    if (isInstalled || !server.isRunning) await server.start();
    if (!isInstalled) return;
    if (server.program === undefined) {
      void vscode.window.showErrorMessage("dg-lsp was installed, but its program was not found. The log has pip's output.");
      return;
    }
    const sample = "Open a Sample";
    const picked = await vscode.window.showInformationMessage("dg-lsp is installed. It suggests code while you type.", sample);
    if (picked === sample) await vscode.commands.executeCommand("dgLsp.openSample");
  });
  command("dgLsp.openCommandSetting", () => vscode.commands.executeCommand("workbench.action.openSettings", "dgLsp.client.command"));
  command("dgLsp.cancel", cancelFills);
  let sample: vscode.TextDocument | undefined;
  command("dgLsp.openSample", async () => {
    sample = await openSample();
    await show(sample, BEFORE_TYPED);
  });
  // The user clicks this in the walkthrough, so the sample is not the active editor.
  command("dgLsp.fillSample", async () => {
    if (!sample || sample.isClosed || !sample.getText().includes(`${BEFORE_BODY}...`)) sample = await openSample();
    await show(sample, BEFORE_BODY);
    await vscode.commands.executeCommand("dgLsp.fillHere");
  });

  context.subscriptions.push(
    vscode.workspace.onDidChangeConfiguration(async (event) => {
      if (event.affectsConfiguration("dgLsp.client.command")) await server.start();
    }),
    vscode.workspace.onDidGrantWorkspaceTrust(() => server.start()),
  );
  await server.start();
  if (server.program?.source === "private" && !(await isCurrent(bundle))) void offerUpdate();
  context.subscriptions.push(
    await onPythonChange(() => {
      if (server.followsPython) void server.start();
    }),
  );
}

/** Wait for the end of the server, because a frozen one would outlive the window. */
export async function deactivate(): Promise<void> {
  await running?.stop();
}

/** Offer to update the private server to the version in this extension. */
async function offerUpdate(): Promise<void> {
  const update = "Update";
  const question = "dg-lsp: this version of the extension includes another version of the server.";
  if ((await vscode.window.showInformationMessage(question, update)) === update) await vscode.commands.executeCommand("dgLsp.install");
}

/** The trigger that the user had before the last pause of this window. */
let usualTrigger = "auto";

async function togglePause(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const trigger = settings.get<string>("completion.trigger", "auto");
  if (trigger !== "manual") usualTrigger = trigger;
  const next = trigger === "manual" ? usualTrigger : "manual";
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

/** Return the settings file that determines a setting. A change in another file would have no effect. */
function whereSet(settings: vscode.WorkspaceConfiguration, name: string): vscode.ConfigurationTarget {
  const { workspaceValue } = settings.inspect(name) ?? {};
  return workspaceValue === undefined ? vscode.ConfigurationTarget.Global : vscode.ConfigurationTarget.Workspace;
}

async function openSample(): Promise<vscode.TextDocument> {
  return vscode.workspace.openTextDocument({ language: "python", content: SAMPLE });
}

/** Show a document with the cursor after a text. */
async function show(document: vscode.TextDocument, text: string): Promise<void> {
  const position = document.positionAt(document.getText().lastIndexOf(text) + text.length);
  // Opened at its place, because someone may type at once.
  await vscode.window.showTextDocument(document, { selection: new vscode.Range(position, position) });
}
