/** The server's process and its client: finds the program, starts and restarts it, and reports its status. */
import type { ChildProcess } from "node:child_process";
import { existsSync } from "node:fs";
import * as vscode from "vscode";
import {
  CloseAction,
  ExecuteCommandRequest,
  State as ClientState,
  type CloseHandlerResult,
  type ErrorHandler,
  type WorkspaceEdit,
} from "vscode-languageclient";
import { LanguageClient, type LanguageClientOptions, type StaticFeature } from "vscode-languageclient/node";
import { sentence } from "./describe";
import type { Drafts } from "./drafts";
import type { Bundle } from "./install";
import { absoluteEntries, locate, type Program } from "./locate";
import type { NextEdits } from "./nextEdits";
import type { Preview } from "./preview";
import type { Snooze } from "./snooze";
import { answerCame, serverCommands, statusChanged, type FillAnswer, type Status, type FillParams } from "./protocol";
import { selectedPython } from "./python";
import { showBriefMessage, reportFill } from "./review";
import { kill, launch, variables } from "./serverProcess";
import { commandLine, forServer } from "./settings";
import type { StatusItem } from "./statusItem";
import { withCancellation } from "./runningFills";
import { complete } from "./walkthrough";
import { Watchdog } from "./watchdog";
import type { Watcher } from "./watcher";

/** Documents that the user edits; not outputs, diffs or documents of other extensions. */
export const SELECTOR = ["file", "untitled", "vscode-notebook-cell", "vscode-vfs"].map((scheme) => ({ scheme, language: "*" }));

/** Without an answer for ten of these, the server is asked for its status; without one for ten more, it is ended. Tests shorten it. */
const TICK_MS = Number(process.env.DG_LSP_WATCHDOG_TICK_MS) || 1000;
/** How long a server may take to answer when it is stopped. The window waits for it when it closes. */
const STOP_MS = 1000;
/** A server that answered for this long was not frozen from its start. */
const PROVEN_MS = 5 * 60 * 1000;
const SHOW_LOG = "Show Log";
const START_AGAIN = "Start Again";

/** A client that shows errors without a traceback, and no errors after it was abandoned. */
class Client extends LanguageClient {
  isAbandoned = false;
  /** Whether the process was ended because it answered nothing. */
  isFrozen = false;
  /** The process, and what watches it; new ones after each restart. */
  process: ChildProcess | undefined;
  watchdog: Watchdog | undefined;

  override error(message: string, data?: unknown, shown: boolean | "force" = true): void {
    // The log gets everything.
    super.error(message, data, false);
    if (this.isAbandoned || shown === false) return;
    const text = data instanceof Error ? data.message : message;
    void vscode.window.showErrorMessage(`dg-lsp: ${text}`, SHOW_LOG).then((picked) => {
      if (picked === SHOW_LOG) this.outputChannel.show();
    });
  }
}

export class Server implements vscode.Disposable {
  private client: Client | undefined;
  private foundProgram: Program | undefined;
  /** Counts the starts; a start that another one has overtaken stops. */
  private startCount = 0;
  /** How many servers in a row were frozen, since the last start by the user. */
  private nFrozen = 0;
  private logged = new Set<string>();

  constructor(
    /** The files in the extension, and the path of the private environment. */
    readonly bundle: Bundle,
    private readonly output: vscode.LogOutputChannel,
    private readonly status: StatusItem,
    private readonly drafts: Drafts,
    private readonly watcher: Watcher,
    private readonly preview: Preview,
    private readonly snooze: Snooze,
    private readonly nextEdits: NextEdits,
  ) {}

  dispose(): void {
    void this.stop();
  }

  /** Whether the server has answered and has not ended. */
  get isRunning(): boolean {
    return this.client?.state === ClientState.Running;
  }

  /** Show that the server is being installed. If its files are replaced, end it before. */
  async prepareInstallation(isReplaced: boolean): Promise<void> {
    if (isReplaced) await this.stop();
    if (!this.isRunning) this.status.setSituation({ kind: "installing" });
  }

  /** The running client. Without one, show a message and return undefined. */
  get running(): LanguageClient | undefined {
    if (this.isRunning) return this.client;
    const more = "Show the Reason";
    void vscode.window.showInformationMessage("dg-lsp: the server is not running", more).then(async (picked) => {
      if (picked === more) await this.status.showMenu();
    });
    return undefined;
  }

  /** The program that the server was started from. */
  get program(): Program | undefined {
    return this.foundProgram;
  }

  /** Whether the selected Python environment can change the program. */
  get followsPython(): boolean {
    return this.foundProgram?.source !== "settings";
  }

  /** Find the program and start it; a failure is shown in the status bar. */
  async start(): Promise<void> {
    const startNumber = ++this.startCount;
    this.nFrozen = 0;
    await this.stop();
    this.status.setSituation({ kind: "starting" });
    const program = await this.find().catch((error: unknown) => error as Error);
    if (startNumber !== this.startCount) return;
    this.foundProgram = program instanceof Error ? undefined : program;
    if (program instanceof Error) {
      this.output.error(program.message);
      this.status.setSituation({ kind: "broken", message: sentence(program.message) });
      return;
    }
    if (!program) {
      this.output.warn("dg-lsp was not found");
      this.status.setSituation({ kind: "missing" });
      return;
    }
    this.output.info(`starting ${[program.command, ...program.args].join(" ")}`);
    const client: Client = new Client("dgLsp", "dg-lsp", () => this.launch(client, program), this.options(() => client));
    client.registerFeature(CAPABILITIES);
    client.onNotification(statusChanged, (status) => {
      this.log(status);
      complete("hasServer");
      this.status.setSituation({ kind: "running", status });
      void this.watcher.follow(status);
      this.nextEdits.follow(client, status.nextEdit);
    });
    client.onNotification(answerCame, ({ textDocument: { uri, version } }) =>
      this.watcher.refresh(client.protocol2CodeConverter.asUri(uri).toString(), version),
    );
    this.drafts.listen(client);
    this.watcher.begin();
    client.onDidChangeState(({ newState }) => {
      if (client !== this.client) return;
      if (newState === ClientState.Starting) this.status.setSituation({ kind: "starting" });
      if (newState === ClientState.Stopped || newState === ClientState.StartFailed) {
        this.drafts.clear();
        this.nextEdits.follow(undefined, "off");
        const message = client.isFrozen ? "The server stopped answering again and was ended; the log may show why." : "The server has ended; the log has the reason.";
        this.status.setSituation({ kind: "broken", message });
      }
    });
    this.client = client;
    try {
      await client.start();
    } catch (error) {
      if (client !== this.client) return;
      const reason = error instanceof Error ? error.message : String(error);
      this.output.error(reason);
      this.status.setSituation({ kind: "broken", message: sentence(`the server could not be started: ${reason}`) });
    }
  }

  /** Write the status to the log, and each sentence only once as long as it stays. */
  private log(status: Status): void {
    const sentences = [
      status.state === "ready" ? "" : `the engine ${status.state === "failed" ? "has failed" : `is ${status.state}`}`,
      status.message,
      status.suppressed ? `no suggestion: ${status.suppressed.message}` : "",
      ...status.problems,
    ].filter((each) => each !== "");
    for (const each of sentences) {
      if (this.logged.has(each)) continue;
      if (status.state === "failed") this.output.error(each);
      else this.output.info(each);
    }
    this.logged = new Set(sentences);
  }

  /** Stop the server, or end it if it does not answer in time. */
  async stop(): Promise<void> {
    const { client } = this;
    this.client = undefined;
    this.drafts.clear();
    this.nextEdits.follow(undefined, "off");
    if (!client) return;
    client.watchdog?.dispose();
    // A server that has not answered yet may never answer, and has nothing to save.
    client.isAbandoned = client.state !== ClientState.Running;
    const hasAnswered = !client.isAbandoned && (await client.dispose(STOP_MS).then(
      () => true,
      () => false,
    ));
    if (!hasAnswered && client.process) kill(client.process);
  }

  private async launch(client: Client, program: Program): Promise<ChildProcess> {
    const child = await launch(program, folder());
    client.isFrozen = false;
    client.process = child;
    client.watchdog?.dispose();
    const watchdog: Watchdog = new Watchdog({
      tickMs: TICK_MS,
      now: () => Date.now(),
      ask: () => {
        client.sendRequest(ExecuteCommandRequest.type, { command: serverCommands.status }).catch(() => undefined);
      },
      onFrozen: () => {
        this.nFrozen = watchdog.answeredForMs > PROVEN_MS ? 1 : this.nFrozen + 1;
        client.isFrozen = true;
        kill(child);
      },
    });
    client.watchdog = watchdog;
    return child;
  }

  /** Return what to do after a frozen server was ended, and tell the user: replace it, but not a second time in a row. */
  private replace(client: Client): CloseHandlerResult {
    if (this.nFrozen === 1) {
      const message = "the server stopped answering and was restarted; the log may show why";
      void vscode.window.showWarningMessage(`dg-lsp: ${message}`, SHOW_LOG).then((picked) => {
        if (picked === SHOW_LOG) this.output.show();
      });
      return { action: CloseAction.Restart, message, handled: true };
    }
    const message = "the server stopped answering again and was ended; the log may show why";
    void vscode.window.showErrorMessage(`dg-lsp: ${message}`, START_AGAIN, SHOW_LOG).then(async (picked) => {
      if (picked === SHOW_LOG) this.output.show();
      if (picked === START_AGAIN && client === this.client) await this.start();
    });
    return { action: CloseAction.DoNotRestart, message, handled: true };
  }

  private async find(): Promise<Program | undefined> {
    return locate(
      {
        setting: commandLine(vscode.workspace.getConfiguration("dgLsp").get("client.command")),
        python: await selectedPython(),
        environment: this.bundle.environment,
        path: absoluteEntries(variables().PATH ?? ""),
      },
      existsSync,
    );
  }

  /** Return whether an edit may be applied. If an annotation needs confirmation, ask the user with a diff. */
  private async isConfirmed(client: Client, edit: WorkspaceEdit): Promise<boolean> {
    for (const annotation of Object.values(edit.changeAnnotations ?? {})) {
      if (!annotation.needsConfirmation) continue;
      // VS Code's own preview would show the change as not selected, and would not show the confidence.
      annotation.needsConfirmation = false;
      for (const change of edit.documentChanges ?? []) {
        if (!("edits" in change)) continue;
        const document = await vscode.workspace.openTextDocument(client.protocol2CodeConverter.asUri(change.textDocument.uri));
        const edits = await client.protocol2CodeConverter.asTextEdits(change.edits.filter((each) => "newText" in each));
        if (!(await this.preview.ask(document, edits, annotation.label))) return false;
      }
    }
    return true;
  }

  private options(client: () => Client): LanguageClientOptions {
    let handler: ErrorHandler | undefined;
    const defaultHandler = () => (handler ??= client().createDefaultErrorHandler());
    return {
      documentSelector: SELECTOR,
      outputChannel: this.output,
      // The status bar shows the error.
      initializationFailedHandler: () => false,
      errorHandler: {
        error: (...args) => defaultHandler().error(...args),
        closed: () => {
          // An abandoned client is not restarted.
          if (client().isAbandoned) return { action: CloseAction.DoNotRestart, handled: true };
          // What was typed and got no answer is requested again from the next server.
          this.watcher.begin();
          return client().isFrozen ? this.replace(client()) : defaultHandler().closed();
        },
      },
      middleware: {
        sendRequest: (type, param, token, next) => {
          const answer = next(type, param, token);
          return client().watchdog?.watch(answer) ?? answer;
        },
        provideInlineCompletionItems: async (document, position, context, token, next) => {
          const ownContext = this.watcher.contextOf(document, context);
          const isAutomatic = ownContext.triggerKind === vscode.InlineCompletionTriggerKind.Automatic;
          if (isAutomatic && this.snooze.until !== undefined) return undefined;
          const isHidden = isAutomatic && this.status.status?.held === true && !this.watcher.isRevealing;
          const answer = await this.watcher.provide(document, position, ownContext, token, next);
          return isHidden ? undefined : answer;
        },
        resolveCodeAction: async (action, token, next) => {
          const resolved = await withCancellation(async (anyToken) => next(action, anyToken), token);
          // The server has added the confidence to the title, but the menu is already closed.
          if (resolved?.edit && resolved.title !== action.title) showBriefMessage(resolved.title);
          return resolved;
        },
        executeCommand: async (command, args: unknown[], next) => {
          const answer: unknown = await next(command, args);
          // The extension's own commands do not pass here and report their fills themselves.
          if (command === serverCommands.fill && answer) reportFill(client(), args[0] as FillParams, answer as FillAnswer);
          return answer;
        },
        workspace: {
          // VS Code would reopen a file that was closed during the fill.
          handleApplyEdit: async (params, next) => {
            const { changes = {}, documentChanges = [] } = params.edit;
            const uris = [...Object.keys(changes), ...documentChanges.flatMap((each) => ("textDocument" in each ? each.textDocument.uri : []))];
            if (!uris.every((uri) => isOpen(client().protocol2CodeConverter.asUri(uri)))) return { applied: false, failureReason: "the file was closed" };
            if (!(await this.isConfirmed(client(), params.edit))) return { applied: false, failureReason: "the user declined the change" };
            return next(params, NEVER);
          },
          configuration: async (params, token, next) => {
            const sections = await next(params, token);
            return Array.isArray(sections) ? sections.map(forServer) : sections;
          },
        },
      },
    };
  }
}

const NEVER = new vscode.CancellationTokenSource().token;

/** Return the folder in which the server and `dg-lsp doctor` run: the first folder of the window. */
export function folder(): string | undefined {
  const first = vscode.workspace.workspaceFolders?.[0]?.uri;
  return first?.scheme === "file" ? first.fsPath : undefined;
}

/** Return whether a tab shows a document: alone, as one side of a diff, or as a notebook cell. */
function isOpen(document: vscode.Uri): boolean {
  const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);
  return tabs.some(({ input }) => Object.values(input ?? {}).some((each) => each instanceof vscode.Uri && each.path === document.path));
}

/** Announces in `initialize` which of the server's additional messages the client supports. */
const CAPABILITIES: StaticFeature = {
  fillClientCapabilities: (capabilities) => {
    capabilities.experimental = { ...(capabilities.experimental as object | undefined), dgLsp: { status: true, draft: true, preview: true, refresh: true, held: true } };
  },
  initialize: () => undefined,
  getState: () => ({ kind: "static" }),
  clear: () => undefined,
};
