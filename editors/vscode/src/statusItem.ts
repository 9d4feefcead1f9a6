/** The item in the status bar, and what a click on it offers. */
import * as vscode from "vscode";
import { describe, sentence, type Situation } from "./describe";
import type { Status } from "./protocol";
import { strings } from "./settings";

const COLOURS = {
  normal: undefined,
  warning: new vscode.ThemeColor("statusBarItem.warningBackground"),
  error: new vscode.ThemeColor("statusBarItem.errorBackground"),
};

export class StatusItem implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("dgLsp.status", vscode.StatusBarAlignment.Right, 100);
  private situation: Situation = { kind: "starting" };

  constructor() {
    this.item.name = "dg-lsp";
    this.item.command = "dgLsp.menu";
    this.become(this.situation);
    this.item.show();
  }

  dispose(): void {
    this.item.dispose();
  }

  /** The last status that the server told, while it runs. */
  get status(): Status | undefined {
    return this.situation.kind === "running" ? this.situation.status : undefined;
  }

  /** Show how things are now. */
  become(situation: Situation): void {
    this.situation = situation;
    const { text, sentences, level } = describe(situation);
    this.item.text = text;
    this.item.tooltip = sentences.join("\n");
    this.item.backgroundColor = COLOURS[level];
    this.item.accessibilityInformation = { label: `dg-lsp: ${sentences.join(" ")}` };
  }

  /** Offer what can be done about it. */
  async offer(): Promise<void> {
    const entries = this.situation.kind === "missing" ? MISSING : entriesFor(this.situation);
    const picked = await vscode.window.showQuickPick(entries, {
      title: "dg-lsp",
      placeHolder: describe(this.situation).sentences[0] ?? "",
    });
    if (picked) await vscode.commands.executeCommand(picked.command);
  }
}

interface Entry extends vscode.QuickPickItem {
  command: string;
}

const MISSING: Entry[] = [
  { label: "$(cloud-download) Install dg-lsp", detail: "into a private Python environment of this extension", command: "dgLsp.install" },
  { label: "$(gear) Say where it is", detail: "the setting dgLsp.client.command", command: "dgLsp.openCommandSetting" },
  { label: "$(refresh) Look again", command: "dgLsp.restart" },
];

function entriesFor(situation: Situation): Entry[] {
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const paused = settings.get("completion.trigger") === "manual";
  const language = vscode.window.activeTextEditor?.document.languageId;
  const languages = strings(settings.get("completion.disabledLanguages"));
  const entries: Entry[] = [
    paused
      ? { label: "$(play) Suggest while typing again", command: "dgLsp.togglePause" }
      : { label: "$(debug-pause) Pause", detail: "asking for a suggestion still works", command: "dgLsp.togglePause" },
  ];
  if (language) {
    const off = languages.includes(language);
    entries.push({
      label: off ? `$(play) Suggest in ${language} again` : `$(debug-pause) Pause for ${language}`,
      command: "dgLsp.toggleLanguage",
    });
  }
  entries.push(
    { label: "$(symbol-misc) Choose a model", detail: String(settings.get("engine.model")), command: "dgLsp.chooseModel" },
    { label: "$(debug-restart) Restart the engine", command: "dgLsp.restart" },
    { label: "$(output) Open the log", command: "dgLsp.showLog" },
    { label: "$(pulse) Run dg-lsp doctor", detail: "what is missing, and what to do about it", command: "dgLsp.doctor" },
  );
  if (situation.kind === "running" && situation.status.busy) {
    entries.unshift({ label: "$(debug-stop) End the fill", command: "dgLsp.cancel" });
  }
  if (situation.kind === "running" && situation.status.suppressed) {
    entries.unshift({ label: `$(info) ${sentence(situation.status.suppressed.message)}`, command: "dgLsp.showLog" });
  }
  return entries;
}
