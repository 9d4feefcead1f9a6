/**
 * Asks again where a typed change got no answer.
 *
 * VS Code sends no request for what was typed before the server runs, and repeats none when the engine is ready. It also sets
 * up the inline suggestions of its first editor only when the window is idle, and sends no request for what was typed before.
 */
import * as vscode from "vscode";
import type { Middleware } from "vscode-languageclient/node";
import type { Status } from "./protocol";
import { needsRequest, typedChange, type Typed } from "./typed";

type Provide = NonNullable<Middleware["provideInlineCompletionItems"]>;

/** How long after a key VS Code's first request is awaited. Its own delay is a fraction of that. */
const FIRST_REQUEST_MS = 1000;

export class Watcher implements vscode.Disposable {
  private typed: (Typed & { document: vscode.TextDocument }) | undefined;
  /** The change for which this class has triggered a request, until that request comes. */
  private triggered: Typed | undefined;
  private isReady = false;
  /** Whether the next request shows what was prepared, because the user asked to see it. */
  private reveals = false;
  /** Whether the request that runs shows what was prepared. */
  isRevealing = false;
  /** Whether VS Code has sent any request, so that it has set up inline suggestions. */
  private hasRequested = false;
  private firstRequest: NodeJS.Timeout | undefined;
  private readonly listener = vscode.workspace.onDidChangeTextDocument((event) => {
    this.remember(event);
  });

  dispose(): void {
    this.listener.dispose();
    clearTimeout(this.firstRequest);
  }

  /** Follow another server, whose engine is not ready yet. */
  begin(): void {
    this.isReady = false;
  }

  /** Follow the engine's state. When it becomes ready, ask again if the last typed change got no answer. */
  async follow(status: Status): Promise<void> {
    const wasReady = this.isReady;
    const isReady = status.state === "ready";
    this.isReady = isReady;
    if (!wasReady) await this.askAgain();
  }

  /** Ask again for the last typed change, whose answer came after the deadline. */
  async refresh(uri: string, version: number | null): Promise<void> {
    const { typed } = this;
    if (typed?.version !== version || typed.document.uri.toString() !== uri) return;
    typed.isAsked = false;
    await this.askAgain();
  }

  /** Show the suggestion that was prepared at the cursor. */
  async reveal(): Promise<void> {
    this.reveals = true;
    await vscode.commands.executeCommand("editor.action.inlineSuggest.trigger");
  }

  /** Ask for the last typed change if it got no answer. */
  private async askAgain(): Promise<void> {
    const { typed } = this;
    const editor = vscode.window.activeTextEditor;
    if (!this.isReady || !typed || editor?.document !== typed.document) return;
    const cursors = editor.selections.map((each) => (each.isEmpty ? editor.document.offsetAt(each.active) : -1));
    if (!needsRequest(typed, editor.document.version, cursors)) return;
    if (!vscode.workspace.getConfiguration("editor", editor.document).get<boolean>("inlineSuggest.enabled", true)) return;
    this.triggered = typed;
    await vscode.commands.executeCommand("editor.action.inlineSuggest.trigger");
  }

  /** Return the context of a request. One that this class has triggered is unprompted: the user has pressed no key for it. */
  contextOf(document: vscode.TextDocument, context: vscode.InlineCompletionContext): vscode.InlineCompletionContext {
    this.hasRequested = true;
    const isTriggered = this.triggered !== undefined && this.triggered === this.typed && document === this.typed.document;
    this.triggered = undefined;
    this.isRevealing = this.reveals;
    this.reveals = false;
    return isTriggered || this.isRevealing ? { ...context, triggerKind: vscode.InlineCompletionTriggerKind.Automatic } : context;
  }

  /** Middleware of the client: returns the answers unchanged, and remembers which change got one. */
  readonly provide: Provide = async (document, position, context, token, next) => {
    const { version } = document;
    const typed = this.typed?.document === document && this.typed.version === version ? this.typed : undefined;
    if (typed) typed.isAsked = true;
    const answer = await next(document, position, context, token);
    // A cancelled request has no answer, and neither has one that came while the engine had failed.
    if (typed && (token.isCancellationRequested || !this.isReady)) typed.isAsked = false;
    return answer;
  };

  private remember({ document, contentChanges, reason }: vscode.TextDocumentChangeEvent): void {
    const [change] = contentChanges;
    if (!change || document !== vscode.window.activeTextEditor?.document) return;
    const isTyped = contentChanges.length === 1 && reason === undefined;
    const { rangeOffset: offset, rangeLength: removed, text } = change;
    this.typed = isTyped ? { ...typedChange(document.version, { offset, removed, text }), document } : undefined;
    if (this.hasRequested) return;
    clearTimeout(this.firstRequest);
    this.firstRequest = setTimeout(() => {
      if (!this.hasRequested) void this.askAgain();
    }, FIRST_REQUEST_MS);
  }
}
