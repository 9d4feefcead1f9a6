/** The server's process and the client that speaks to it: found, started, told of, started anew. */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import * as path from "node:path";
import * as vscode from "vscode";
import { CloseAction, State as ClientState, type ErrorHandler, type WorkspaceEdit } from "vscode-languageclient";
import { LanguageClient, type LanguageClientOptions, type StaticFeature } from "vscode-languageclient/node";
import { sentence } from "./describe";
import type { Drafts } from "./drafts";
import type { Carried } from "./install";
import { absoluteEntries, locate, type Found } from "./locate";
import type { Preview } from "./preview";
import type { Snooze } from "./snooze";
import { serverCommands, statusChanged, type FillAnswer, type Status, type Wanted } from "./protocol";
import { pythonOf } from "./python";
import { sayBriefly, tellFilled } from "./review";
import { commandLine, forServer } from "./settings";
import type { StatusItem } from "./statusItem";
import { whileUnderWay } from "./underWay";
import type { Watcher } from "./watcher";

/** Documents that people write; not outputs, diffs or what other extensions show. */
export const SELECTOR = ["file", "untitled", "vscode-notebook-cell", "vscode-vfs"].map((scheme) => ({ scheme, language: "*" }));

/** A client that is silent about its end once it was given up. */
class Client extends LanguageClient {
  isGivenUp = false;

  override error(message: string, data?: unknown, shown?: boolean | "force"): void {
    super.error(message, data, this.isGivenUp ? false : shown);
  }
}

export class Server implements vscode.Disposable {
  private client: Client | undefined;
  private process: ChildProcess | undefined;
  private found: Found | undefined;
  private turn = 0;
  private logged = new Set<string>();

  constructor(
    /** What the extension carries, and the folder of the environment that `install` makes. */
    readonly carried: Carried,
    private readonly output: vscode.LogOutputChannel,
    private readonly status: StatusItem,
    private readonly drafts: Drafts,
    private readonly watcher: Watcher,
    private readonly preview: Preview,
    private readonly snooze: Snooze,
  ) {}

  dispose(): void {
    void this.stop();
  }

  /** The client, once it runs; undefined, and the user told, while there is none. */
  get running(): LanguageClient | undefined {
    if (this.client?.state === ClientState.Running) return this.client;
    void vscode.window.showInformationMessage("dg-lsp: the server does not run; the status bar says why");
    return undefined;
  }

  /** The program that the server was started from. */
  get program(): Found | undefined {
    return this.found;
  }

  /** Whether another Python environment could mean another program. */
  get followsPython(): boolean {
    return this.found?.source !== "settings";
  }

  /** Find the program and start it; a failure is shown in the status bar. */
  async start(): Promise<void> {
    const turn = ++this.turn;
    await this.stop();
    this.status.become({ kind: "starting" });
    const found = await this.find().catch((error: unknown) => error as Error);
    if (turn !== this.turn) return;
    this.found = found instanceof Error ? undefined : found;
    if (found instanceof Error) {
      this.output.error(found.message);
      this.status.become({ kind: "broken", message: sentence(found.message) });
      return;
    }
    if (!found) {
      this.output.warn("dg-lsp was not found");
      this.status.become({ kind: "missing" });
      return;
    }
    this.output.info(`starting ${[found.command, ...found.args].join(" ")}`);
    const client: Client = new Client("dgLsp", "dg-lsp", () => this.launch(found), this.options(() => client));
    client.registerFeature(UNDERSTANDS);
    client.onNotification(statusChanged, (status) => {
      this.log(status);
      this.status.become({ kind: "running", status });
    });
    this.drafts.listen(client);
    this.watcher.tell(client);
    client.onDidChangeState(({ newState }) => {
      if (client !== this.client) return;
      if (newState === ClientState.Starting) this.status.become({ kind: "starting" });
      if (newState === ClientState.Stopped || newState === ClientState.StartFailed) {
        this.drafts.clear();
        this.status.become({ kind: "broken", message: "The server has ended; the log says why." });
      }
    });
    this.client = client;
    try {
      await client.start();
    } catch (error) {
      if (client !== this.client) return;
      const reason = error instanceof Error ? error.message : String(error);
      this.output.error(reason);
      this.status.become({ kind: "broken", message: sentence(`the server could not be started: ${reason}`) });
    }
  }

  /** Write into the log what the status says, each thing once as long as it stays. */
  private log(status: Status): void {
    const words = [
      status.state === "ready" ? "" : `the engine is ${status.state}`,
      status.message,
      status.suppressed ? `no suggestion: ${status.suppressed.message}` : "",
      ...status.problems,
    ].filter((each) => each !== "");
    for (const each of words) {
      if (this.logged.has(each)) continue;
      if (status.state === "failed") this.output.error(each);
      else this.output.info(each);
    }
    this.logged = new Set(words);
  }

  private async stop(): Promise<void> {
    const { client, process } = this;
    this.client = this.process = undefined;
    this.drafts.clear();
    if (client?.state === ClientState.Running) await client.dispose();
    else if (client) {
      // One that has not answered yet, and may never, is not waited for.
      client.isGivenUp = true;
      process?.kill();
    }
  }

  private async launch({ command, args, source }: Found): Promise<ChildProcess> {
    const child = spawn(command, args, { cwd: folder(), env: { ...process.env, PATH: absoluteEntries(process.env.PATH ?? "").join(path.delimiter) } });
    try {
      await once(child, "spawn");
    } catch (error) {
      const named = source === "settings" ? ", which the setting dgLsp.client.command names," : "";
      throw new Error(`${command}${named} can't be run (${(error as NodeJS.ErrnoException).code ?? String(error)})`, { cause: error });
    }
    this.process = child;
    return child;
  }

  private async find(): Promise<Found | undefined> {
    return locate(
      {
        named: commandLine(vscode.workspace.getConfiguration("dgLsp").get("client.command")),
        python: await pythonOf(),
        environment: this.carried.environment,
        path: absoluteEntries(process.env.PATH ?? ""),
      },
      existsSync,
    );
  }

  /** Return whether an edit may be applied: what needs confirmation is shown to the user first, who sees it in a diff. */
  private async isAgreed(client: Client, edit: WorkspaceEdit): Promise<boolean> {
    for (const annotation of Object.values(edit.changeAnnotations ?? {})) {
      if (!annotation.needsConfirmation) continue;
      // VS Code's own preview would not have the change ticked, nor say how sure the model is.
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
    const usual = () => (handler ??= client().createDefaultErrorHandler());
    return {
      documentSelector: SELECTOR,
      outputChannel: this.output,
      // The status bar says it.
      initializationFailedHandler: () => false,
      errorHandler: {
        error: (...happened) => usual().error(...happened),
        // What has been given up is not started again.
        closed: () => (client().isGivenUp ? { action: CloseAction.DoNotRestart, handled: true } : usual().closed()),
      },
      middleware: {
        provideInlineCompletionItems: (document, position, context, token, next) => {
          const isAutomatic = context.triggerKind === vscode.InlineCompletionTriggerKind.Automatic;
          return isAutomatic && this.snooze.until !== undefined ? undefined : this.watcher.provide(document, position, context, token, next);
        },
        resolveCodeAction: async (action, token, next) => {
          const resolved = await whileUnderWay(async (either) => next(action, either), token);
          // The server has put how sure the model is behind the title, which the menu shows no more.
          if (resolved?.edit && resolved.title !== action.title) sayBriefly(resolved.title);
          return resolved;
        },
        executeCommand: async (command, args: unknown[], next) => {
          const answer: unknown = await next(command, args);
          // What our own commands ask for, they tell of themselves.
          if (command === serverCommands.fill && answer) tellFilled(client(), args[0] as Wanted, answer as FillAnswer);
          return answer;
        },
        workspace: {
          // VS Code would open a file again that was closed while it was filled.
          handleApplyEdit: async (params, next) => {
            const { changes = {}, documentChanges = [] } = params.edit;
            const uris = [...Object.keys(changes), ...documentChanges.flatMap((each) => ("textDocument" in each ? each.textDocument.uri : []))];
            if (!uris.every((uri) => isOpen(client().protocol2CodeConverter.asUri(uri)))) return { applied: false, failureReason: "the file was closed" };
            if (!(await this.isAgreed(client(), params.edit))) return { applied: false, failureReason: "the user said no" };
            return next(params, NEVER);
          },
          configuration: async (params, token, next) => {
            const found = await next(params, token);
            return Array.isArray(found) ? found.map(forServer) : found;
          },
        },
      },
    };
  }
}

const NEVER = new vscode.CancellationTokenSource().token;

/** Return where the server and its doctor run: the first folder of the window. */
export function folder(): string | undefined {
  const first = vscode.workspace.workspaceFolders?.[0]?.uri;
  return first?.scheme === "file" ? first.fsPath : undefined;
}

/** Return whether a tab shows a document: by itself, as one side of a comparison, or as a cell. */
function isOpen(document: vscode.Uri): boolean {
  const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);
  return tabs.some(({ input }) => Object.values(input ?? {}).some((each) => each instanceof vscode.Uri && each.path === document.path));
}

/** Says in `initialize` which of the server's own notifications are understood here. */
const UNDERSTANDS: StaticFeature = {
  fillClientCapabilities: (capabilities) => {
    capabilities.experimental = { ...(capabilities.experimental as object | undefined), dgLsp: { status: true, draft: true, preview: true } };
  },
  initialize: () => undefined,
  getState: () => ({ kind: "static" }),
  clear: () => undefined,
};
