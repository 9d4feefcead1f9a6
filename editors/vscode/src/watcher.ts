/**
 * Reports shown and partially accepted suggestions to the server, for the counts that stay on this machine.
 *
 * VS Code reports these events only to extensions on its own list, so this class watches the answers and the document.
 */
import * as vscode from "vscode";
import type { LanguageClient, Middleware } from "vscode-languageclient/node";
import { didPartiallyAccept, didShow, type ShownItem } from "./protocol";
import { afterChange, type ShownSuggestion } from "./shownSuggestion";

type Provide = NonNullable<Middleware["provideInlineCompletionItems"]>;

export class Watcher implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private item: ShownItem | undefined;
  private shown: ShownSuggestion | undefined;
  private document: vscode.TextDocument | undefined;
  private readonly listener = vscode.workspace.onDidChangeTextDocument((event) => {
    this.changed(event);
  });

  dispose(): void {
    this.listener.dispose();
  }

  /** Send the reports to this client's server. */
  attach(client: LanguageClient): void {
    this.client = client;
    this.shown = undefined;
  }

  /** Middleware of the client: returns the answers unchanged, and remembers the first item. */
  readonly provide: Provide = async (document, position, context, token, next) => {
    const { version } = document;
    const answer = await next(document, position, context, token);
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

  private changed({ document, contentChanges, reason }: vscode.TextDocumentChangeEvent): void {
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

  private send(notify: (client: LanguageClient, item: ShownItem) => Promise<void>): void {
    if (!this.client?.isRunning() || !this.item?.command) return;
    // If the server has ended, only a count is lost.
    notify(this.client, this.item).catch(() => undefined);
  }
}
