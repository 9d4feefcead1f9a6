/** The item in the status bar, and its menu. */
import * as vscode from "vscode";
import { describe, sentence, type Situation } from "./describe";
import type { Status } from "./protocol";
import { strings } from "./settings";
import type { Snooze } from "./snooze";

const COLOURS = {
  normal: undefined,
  warning: new vscode.ThemeColor("statusBarItem.warningBackground"),
  error: new vscode.ThemeColor("statusBarItem.errorBackground"),
};

export class StatusItem implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("dgLsp.status", vscode.StatusBarAlignment.Right, 100);
  private situation: Situation = { kind: "starting" };

  constructor(private readonly snooze: Snooze) {
    snooze.onDidChange(() => {
      this.show();
    });
    this.item.name = "dg-lsp";
    this.item.command = "dgLsp.menu";
    this.setSituation(this.situation);
    this.item.show();
  }

  dispose(): void {
    this.item.dispose();
  }

  /** The last status from the server, while it runs. */
  get status(): Status | undefined {
    return this.situation.kind === "running" ? this.situation.status : undefined;
  }

  /** Show a new situation. */
  setSituation(situation: Situation): void {
    this.situation = situation;
    this.show();
  }

  private show(): void {
    const { text, sentences, level } = describe(this.displayed);
    this.item.text = text;
    this.item.tooltip = sentences.join("\n");
    this.item.backgroundColor = COLOURS[level];
    this.item.accessibilityInformation = { label: `dg-lsp: ${sentences.join(" ")}` };
  }

  /** The situation to display, including a snooze. */
  private get displayed(): Situation {
    const until = this.snooze.until;
    const { situation } = this;
    return situation.kind === "running" && until !== undefined ? { kind: "snoozed", until, status: situation.status } : situation;
  }

  /** Show the menu. */
  async showMenu(): Promise<void> {
    const entries = this.situation.kind === "missing" ? MISSING : entriesFor(this.situation, this.snooze.until);
    const picked = await vscode.window.showQuickPick(entries, {
      title: "dg-lsp",
      placeHolder: describe(this.displayed).sentences[0] ?? "",
    });
    if (picked) await vscode.commands.executeCommand(picked.command);
  }
}

interface Entry extends vscode.QuickPickItem {
  command: string;
}

const MISSING: Entry[] = [
  { label: "$(cloud-download) Install the server", detail: "into a private Python environment of this extension", command: "dgLsp.install" },
  { label: "$(gear) Set the path of dg-lsp", detail: "the setting dgLsp.client.command", command: "dgLsp.openCommandSetting" },
  { label: "$(refresh) Search again", command: "dgLsp.restart" },
];

function entriesFor(situation: Situation, snoozedUntil: string | undefined): Entry[] {
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const paused = settings.get("completion.trigger") === "manual";
  const language = vscode.window.activeTextEditor?.document.languageId;
  const languages = strings(settings.get("completion.disabledLanguages"));
  const entries: Entry[] = [
    paused
      ? { label: "$(play) Resume", command: "dgLsp.togglePause" }
      : { label: "$(debug-pause) Pause", detail: "no unprompted suggestions; explicit requests still work", command: "dgLsp.togglePause" },
  ];
  entries.push(
    snoozedUntil === undefined
      ? { label: "$(bell-slash) Snooze", detail: "no unprompted suggestions for some minutes", command: "dgLsp.snooze" }
      : { label: "$(bell) End the snooze", detail: `until ${snoozedUntil}`, command: "dgLsp.snooze" },
  );
  if (language) {
    const off = languages.includes(language);
    entries.push({
      label: off ? `$(play) Resume for ${language}` : `$(debug-pause) Pause for ${language}`,
      command: "dgLsp.toggleLanguage",
    });
  }
  entries.push(
    { label: "$(symbol-misc) Choose a model", detail: String(settings.get("engine.model")), command: "dgLsp.chooseModel" },
    { label: "$(debug-restart) Restart the engine", command: "dgLsp.restart" },
    { label: "$(output) Open the log", command: "dgLsp.showLog" },
    { label: "$(pulse) Run dg-lsp doctor", detail: "checks the installation, and says how to fix problems", command: "dgLsp.doctor" },
  );
  if (situation.kind === "running" && situation.status.busy) {
    entries.unshift({ label: "$(debug-stop) Cancel all fills", command: "dgLsp.cancel" });
  }
  if (situation.kind === "running" && situation.status.suppressed) {
    entries.unshift({ label: `$(info) ${sentence(situation.status.suppressed.message)}`, command: "dgLsp.showLog" });
  }
  return entries;
}
