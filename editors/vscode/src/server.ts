/** The server's process and the client that speaks to it: found, started, told of, started anew. */
import { existsSync } from "node:fs";
import * as path from "node:path";
import * as vscode from "vscode";
import { State as ClientState } from "vscode-languageclient";
import { LanguageClient, type LanguageClientOptions, type StaticFeature } from "vscode-languageclient/node";
import type { Drafts } from "./drafts";
import { locate, type Found } from "./locate";
import { statusChanged } from "./protocol";
import { pythonOf } from "./python";
import { forServer } from "./settings";
import type { StatusItem } from "./statusItem";
import type { Watcher } from "./watcher";

/** Documents that people write; not outputs, diffs or what other extensions show. */
const SELECTOR = ["file", "untitled", "vscode-notebook-cell", "vscode-vfs"].map((scheme) => ({ scheme, language: "*" }));

export class Server implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private found: Found | undefined;
  private turn = 0;

  constructor(
    /** The folder of the environment that `install` makes. */
    readonly environment: string,
    private readonly output: vscode.LogOutputChannel,
    private readonly status: StatusItem,
    private readonly drafts: Drafts,
    private readonly watcher: Watcher,
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
  get program(): string | undefined {
    return this.found?.command;
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
    const found = await this.find();
    if (turn !== this.turn) return;
    this.found = found;
    if (!found) {
      this.output.warn("dg-lsp was not found");
      this.status.become({ kind: "missing" });
      return;
    }
    this.output.info(`starting ${[found.command, ...found.args].join(" ")}`);
    const client = new LanguageClient("dgLsp", "dg-lsp", { command: found.command, args: found.args }, this.options());
    client.registerFeature(UNDERSTANDS);
    client.onNotification(statusChanged, (status) => {
      this.status.become({ kind: "running", status });
    });
    this.drafts.listen(client);
    this.watcher.tell(client);
    client.onDidChangeState(({ newState }) => {
      if (client !== this.client) return;
      if (newState === ClientState.Starting) this.status.become({ kind: "starting" });
      if (newState === ClientState.Stopped) {
        this.drafts.clear();
        this.status.become({ kind: "broken", message: "The server has ended; the log says why." });
      }
    });
    this.client = client;
    try {
      await client.start();
    } catch (error) {
      this.output.error(String(error));
      this.status.become({ kind: "broken", message: `The server could not be started: ${String(error)}` });
    }
  }

  private async stop(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    this.drafts.clear();
    if (client && (client.state === ClientState.Running || client.state === ClientState.Starting)) await client.dispose();
  }

  private async find(): Promise<Found | undefined> {
    const windows = process.platform === "win32";
    return locate(
      {
        named: vscode.workspace.getConfiguration("dgLsp").get<string[]>("client.command", []),
        python: await pythonOf(),
        environment: this.environment,
        path: (process.env.PATH ?? "").split(path.delimiter),
        windows,
      },
      existsSync,
    );
  }

  private options(): LanguageClientOptions {
    return {
      documentSelector: SELECTOR,
      outputChannel: this.output,
      middleware: {
        provideInlineCompletionItems: this.watcher.provide,
        workspace: {
          configuration: async (params, token, next) => {
            const found = await next(params, token);
            return Array.isArray(found) ? found.map(forServer) : found;
          },
        },
      },
    };
  }
}

/** Says in `initialize` which of the server's own notifications are understood here. */
const UNDERSTANDS: StaticFeature = {
  fillClientCapabilities: (capabilities) => {
    capabilities.experimental = { ...(capabilities.experimental as object | undefined), dgLsp: { status: true, draft: true } };
  },
  initialize: () => undefined,
  getState: () => ({ kind: "static" }),
  clear: () => undefined,
};
