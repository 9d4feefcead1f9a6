/** The item in the status bar, and its menu. */
import * as vscode from "vscode";
import { describe, noSuggestion, sentence, type Situation } from "./describe";
import type { Status } from "./protocol";
import { pauseReason, strings } from "./settings";
import type { Snooze } from "./snooze";

const COLOURS = {
  normal: undefined,
  warning: new vscode.ThemeColor("statusBarItem.warningBackground"),
  error: new vscode.ThemeColor("statusBarItem.errorBackground"),
};

export class StatusItem implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("dgLsp.status", vscode.StatusBarAlignment.Right, 100);
  private situation: Situation = { kind: "starting" };
  private readonly listeners: vscode.Disposable[];

  constructor(private readonly snooze: Snooze) {
    const show = () => {
      this.show();
    };
    // A pause is shown at once, not only after the next key.
    this.listeners = [snooze.onDidChange(show), vscode.workspace.onDidChangeConfiguration(show), vscode.window.onDidChangeActiveTextEditor(show)];
    this.item.name = "dg-lsp";
    this.item.command = "dgLsp.menu";
    this.setSituation(this.situation);
    this.item.show();
  }

  dispose(): void {
    for (const each of this.listeners) each.dispose();
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

  /** The situation to display, including a snooze and a pause. */
  private get displayed(): Situation {
    const { situation } = this;
    if (situation.kind !== "running") return situation;
    const { status } = situation;
    const until = this.snooze.until;
    if (until !== undefined) return { kind: "snoozed", until, status };
    const reason = pause();
    return reason === undefined ? situation : { kind: "paused", reason, status };
  }

  /** Show the menu. */
  async showMenu(): Promise<void> {
    const entries = entriesFor(this.situation, this.snooze.until);
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

const INSTALL: Entry = { label: "$(cloud-download) Install the server", detail: "into a private Python environment of this extension; asks which build of torch, with its size", command: "dgLsp.install" };
const SET_PATH: Entry = { label: "$(gear) Set the path of dg-lsp", detail: "the setting dgLsp.client.command", command: "dgLsp.openCommandSetting" };
const LOG: Entry = { label: "$(output) Open the log", command: "dgLsp.showLog" };
const DOCTOR: Entry = { label: "$(pulse) Run dg-lsp doctor", detail: "checks the installation, and says how to fix problems", command: "dgLsp.doctor" };

/** Return why the settings allow no unprompted suggestion in the active editor; undefined if they allow them. */
function pause(): string | undefined {
  const settings = vscode.workspace.getConfiguration("dgLsp");
  const choices = { enable: settings.get("enable"), trigger: settings.get("completion.trigger"), disabledLanguages: settings.get("completion.disabledLanguages") };
  return pauseReason(choices, vscode.window.activeTextEditor?.document.languageId);
}

function entriesFor(situation: Situation, snoozedUntil: string | undefined): Entry[] {
  if (situation.kind === "missing") return [INSTALL, SET_PATH, { label: "$(refresh) Search again", command: "dgLsp.restart" }];
  // Without a server there is nothing to pause.
  if (situation.kind === "broken") return [{ label: "$(debug-restart) Start the server again", command: "dgLsp.restart" }, LOG, SET_PATH, INSTALL, DOCTOR];
  const status = "status" in situation ? situation.status : undefined;
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
    // A configuration file may name another model than the setting.
    { label: "$(symbol-misc) Choose a model", detail: status?.model ?? String(settings.get("engine.model")), command: "dgLsp.chooseModel" },
    { label: "$(debug-restart) Restart the engine", command: "dgLsp.restart" },
    LOG,
    DOCTOR,
  );
  if (status?.busy) entries.unshift({ label: "$(debug-stop) Cancel all fills", command: "dgLsp.cancel" });
  if (status?.suppressed) entries.unshift({ label: `$(info) ${sentence(noSuggestion(status.suppressed.message))}`, command: "dgLsp.showLog" });
  if (status?.message && status.message !== status.suppressed?.message) entries.unshift({ label: `$(info) ${sentence(status.message)}`, command: "dgLsp.showLog" });
  return entries;
}
