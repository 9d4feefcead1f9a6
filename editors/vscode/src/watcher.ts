/**
 * Reports shown and partially accepted suggestions to the server, for the counts that stay on this machine, and asks again
 * where a typed change got no answer.
 *
 * VS Code reports these events only to extensions on its own list, so this class watches the answers and the document.
 * VS Code sends no request for what was typed before the server runs, and repeats none when the engine is ready. It also sets
 * up the inline suggestions of its first editor only when the window is idle, and sends no request for what was typed before.
 */
import * as vscode from "vscode";
import type { LanguageClient, Middleware } from "vscode-languageclient/node";
import { didPartiallyAccept, didShow, type ShownItem, type Status } from "./protocol";
import { afterChange, type ShownSuggestion } from "./shownSuggestion";
import { needsRequest, typedChange, type Typed } from "./typed";

type Provide = NonNullable<Middleware["provideInlineCompletionItems"]>;

/** How long after a key VS Code's first request is awaited. Its own delay is a fraction of that. */
const FIRST_REQUEST_MS = 1000;

export class Watcher implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private item: ShownItem | undefined;
  private shown: ShownSuggestion | undefined;
  private document: vscode.TextDocument | undefined;
  private typed: (Typed & { document: vscode.TextDocument }) | undefined;
  /** The change for which this class has triggered a request, until that request comes. */
  private triggered: Typed | undefined;
  private isReady = false;
  /** Whether VS Code has sent any request, so that it has set up inline suggestions. */
  private hasRequested = false;
  private firstRequest: NodeJS.Timeout | undefined;
  private readonly listener = vscode.workspace.onDidChangeTextDocument((event) => {
    this.changed(event);
  });

  dispose(): void {
    this.listener.dispose();
    clearTimeout(this.firstRequest);
  }

  /** Send the reports to this client's server. */
  attach(client: LanguageClient): void {
    this.client = client;
    this.shown = undefined;
    this.isReady = false;
  }

  /** Follow the engine's state. When it becomes ready, ask again if the last typed change got no answer. */
  async follow(status: Status): Promise<void> {
    const wasReady = this.isReady;
    const isReady = status.state === "ready";
    this.isReady = isReady;
    if (!wasReady) await this.askAgain();
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
    return isTriggered ? { ...context, triggerKind: vscode.InlineCompletionTriggerKind.Automatic } : context;
  }

  /** Middleware of the client: returns the answers unchanged, and remembers the first item. */
  readonly provide: Provide = async (document, position, context, token, next) => {
    const { version } = document;
    const typed = this.typed?.document === document && this.typed.version === version ? this.typed : undefined;
    if (typed) typed.isAsked = true;
    const answer = await next(document, position, context, token);
    // A cancelled request has no answer, and neither has one that came while the engine had failed.
    if (typed && (token.isCancellationRequested || !this.isReady)) typed.isAsked = false;
    const [first] = Array.isArray(answer) ? answer : (answer?.items ?? []);
    // An answer to a cancelled request or an older version is not shown.
    if (first && !token.isCancellationRequested && document.version === version) this.show(document, position, first);
    return answer;
  };

  private show(document: vscode.TextDocument, position: vscode.Position, item: vscode.InlineCompletionItem): void {
    const editor = vscode.window.activeTextEditor;
    if (editor?.document !== document || !editor.selection.active.isEqual(position)) return;
    const text = typeof item.insertText === "string" ? item.insertText : item.insertText.value;
    const start = document.offsetAt(item.range?.start ?? position);
    this.document = document;
    this.shown = { text, start, present: document.offsetAt(position) - start, accepted: 0 };
    this.item = { insertText: text, ...(item.command && { command: item.command }) };
    this.send((client, shown) => client.sendNotification(didShow, { item: shown }));
  }

  private changed(event: vscode.TextDocumentChangeEvent): void {
    const { document, contentChanges, reason } = event;
    this.remember(event);
    if (this.shown === undefined || document !== this.document || contentChanges.length === 0) return;
    const [change] = contentChanges;
    const before = this.shown;
    this.shown =
      change && contentChanges.length === 1 && reason === undefined
        ? afterChange(before, { offset: change.rangeOffset, removed: change.rangeLength, text: change.text })
        : undefined;
    const acceptedLength = this.shown?.accepted ?? 0;
    if (acceptedLength > before.accepted) this.send((client, item) => client.sendNotification(didPartiallyAccept, { item, acceptedLength }));
  }

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

  private send(notify: (client: LanguageClient, item: ShownItem) => Promise<void>): void {
    if (!this.client?.isRunning() || !this.item?.command) return;
    // If the server has ended, only a count is lost.
    notify(this.client, this.item).catch(() => undefined);
  }
}
