/** The next edit: asks for the change that the user will probably make next, shows it, goes to it and applies it. */
import * as vscode from "vscode";
import { ExecuteCommandRequest } from "vscode-languageclient";
import type { LanguageClient } from "vscode-languageclient/node";
import { layOut } from "./draftLayout";
import { linesOfEditor } from "./drafts";
import { layOutEdit, type EditLayout } from "./editLayout";
import { nextEditAsked, type NextEdit, type Status } from "./protocol";
import type { Snooze } from "./snooze";

/** Set to "here" while the cursor is at the edit that is shown, and to "elsewhere" while it is not. */
const CONTEXT = "dgLsp.nextEdit";
/** Set while the server's setting asks for next edits. */
const ON = "dgLsp.hasNextEdits";
const BY_USER = 1;
const BY_ITSELF = 2;

interface Shown extends NextEdit {
  client: LanguageClient;
  editor: vscode.TextEditor;
  layout: EditLayout;
}

export class NextEdits implements vscode.Disposable {
  private readonly newText = vscode.window.createTextEditorDecorationType({
    // Without a background, which would cover the spaces before the text.
    after: { color: new vscode.ThemeColor("gitDecoration.addedResourceForeground") },
    rangeBehavior: vscode.DecorationRangeBehavior.ClosedClosed,
  });
  private readonly oldText = vscode.window.createTextEditorDecorationType({
    backgroundColor: new vscode.ThemeColor("diffEditor.removedTextBackground"),
    textDecoration: "line-through",
  });
  private client: LanguageClient | undefined;
  private trigger: Status["nextEdit"] = "off";
  /** What follows the text and the cursor; nothing while the trigger is "off". */
  private listeners: vscode.Disposable[] = [];
  private shown: Shown | undefined;
  private request: vscode.CancellationTokenSource | undefined;
  /** Who asked what runs. */
  private askedBy: 1 | 2 = BY_ITSELF;
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly snooze: Snooze) {}

  dispose(): void {
    this.follow(undefined, "off");
    this.newText.dispose();
    this.oldText.dispose();
  }

  /** Follow what a server says of when to ask; "off" ends all work. */
  follow(client: LanguageClient | undefined, trigger: Status["nextEdit"]): void {
    if (client === this.client && trigger === this.trigger) return;
    this.client = client;
    this.trigger = trigger;
    this.stop();
    for (const each of this.listeners) each.dispose();
    this.listeners = [];
    void vscode.commands.executeCommand("setContext", ON, trigger !== "off");
    if (trigger === "off") return;
    this.listeners = [
      vscode.workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
        if (contentChanges.length === 0) return;
        if (document === this.shown?.editor.document) this.hide();
        if (document === vscode.window.activeTextEditor?.document) this.askSoon();
      }),
      vscode.window.onDidChangeTextEditorSelection(({ textEditor }) => {
        if (textEditor !== vscode.window.activeTextEditor) return;
        this.setContext();
        // The event of a movement may come after the key that asks behind it: then what the user asked for is asked at the new place.
        this.askSoon(this.askedBy);
      }),
      vscode.window.onDidChangeActiveTextEditor(() => {
        this.stop();
        this.askSoon();
      }),
    ];
  }

  /** Go to the edit, or apply it if the cursor is there. Without one, ask for it. */
  async next(): Promise<void> {
    const { shown } = this;
    if (!shown) {
      if (this.client && this.trigger !== "off") await this.ask(this.client, BY_USER);
      else void vscode.window.showInformationMessage("dg-lsp: next edits are off; see the setting dgLsp.nextEdit.trigger");
      return;
    }
    const [first] = shown.layout.holes;
    if (this.isHere(shown) || !first) {
      await this.accept(shown);
      return;
    }
    const at = shown.client.protocol2CodeConverter.asPosition(first.range.start);
    shown.editor.selection = new vscode.Selection(at, at);
    // The event of this movement comes later than the next key may.
    this.setContext();
    shown.editor.revealRange(new vscode.Range(at, at), vscode.TextEditorRevealType.InCenterIfOutsideViewport);
  }

  /** Take the edit away, and tell the server, which does not offer it again. */
  async reject(): Promise<void> {
    const { shown } = this;
    if (!shown) return;
    this.hide();
    await tell(shown, "rejected");
  }

  private async accept(shown: Shown): Promise<void> {
    const { editor, text, client } = shown;
    const { document } = editor;
    const range = client.protocol2CodeConverter.asRange(shown.range);
    const end = document.offsetAt(range.start) + text.replace(/\r?\n$/, "").length;
    this.stop();
    // It fails if the document has another version by now.
    const isApplied = await editor.edit((builder) => {
      builder.replace(range, text);
    });
    if (!isApplied) return;
    const at = document.positionAt(end);
    editor.selection = new vscode.Selection(at, at);
    await tell(shown, "accepted");
  }

  /** Ask after the events of this moment: the client sends the change only after its own listener was called. */
  private askSoon(askedBy: 1 | 2 = BY_ITSELF): void {
    this.request?.cancel();
    clearTimeout(this.timer);
    this.askedBy = askedBy;
    this.timer = setTimeout(() => {
      const isWanted = askedBy === BY_USER || (this.trigger === "pause" && this.snooze.until === undefined);
      if (this.client && isWanted) void this.ask(this.client, askedBy);
    });
  }

  private async ask(client: LanguageClient, triggerKind: 1 | 2): Promise<void> {
    this.request?.cancel();
    clearTimeout(this.timer);
    this.askedBy = BY_ITSELF;
    const editor = vscode.window.activeTextEditor;
    if (!editor || !hasOneCursor(editor)) {
      this.hide();
      return;
    }
    const request = new vscode.CancellationTokenSource();
    this.request = request;
    this.askedBy = triggerKind;
    const { document } = editor;
    const convert = client.code2ProtocolConverter;
    const textDocument = { uri: convert.asUri(document.uri), version: document.version };
    const position = convert.asPosition(editor.selection.active);
    const answer = await client.sendRequest(nextEditAsked, { textDocument, position, context: { triggerKind } }, request.token).catch(() => undefined);
    if (request.token.isCancellationRequested || editor !== vscode.window.activeTextEditor) return;
    this.askedBy = BY_ITSELF;
    this.hide();
    const edit = answer?.edits[0];
    if (edit?.textDocument.version === document.version && hasOneCursor(editor)) this.show(client, editor, edit);
    else if (triggerKind === BY_USER) void vscode.window.setStatusBarMessage("dg-lsp: no next edit is known here", 5000);
  }

  private show(client: LanguageClient, editor: vscode.TextEditor, edit: NextEdit): void {
    const { document } = editor;
    const layout = layOutEdit(edit, (line) => (line < document.lineCount ? document.lineAt(line).text : ""));
    if (!layout) return;
    this.shown = { ...edit, client, editor, layout };
    const texts = layOut(layout.holes, linesOfEditor(editor)).map(({ line, character, text }) => {
      const at = new vscode.Position(line, character);
      return { range: new vscode.Range(at, at), renderOptions: { after: { contentText: text } } };
    });
    editor.setDecorations(this.newText, texts);
    editor.setDecorations(this.oldText, layout.holes.map((hole) => client.protocol2CodeConverter.asRange(hole.range)));
    this.setContext();
  }

  private hide(): void {
    const { shown } = this;
    if (!shown) return;
    this.shown = undefined;
    shown.editor.setDecorations(this.newText, []);
    shown.editor.setDecorations(this.oldText, []);
    this.setContext();
  }

  /** Take the edit away, and end the last request. */
  private stop(): void {
    clearTimeout(this.timer);
    this.request?.cancel();
    this.askedBy = BY_ITSELF;
    this.hide();
  }

  private isHere({ editor, layout }: Shown): boolean {
    const { line } = editor.selection.active;
    return line >= layout.first && line <= layout.last;
  }

  private setContext(): void {
    const value = this.shown && (this.isHere(this.shown) ? "here" : "elsewhere");
    void vscode.commands.executeCommand("setContext", CONTEXT, value);
  }
}

function hasOneCursor(editor: vscode.TextEditor): boolean {
  return editor.selections.length === 1 && editor.selection.isEmpty;
}

async function tell({ client, command }: Shown, outcome: "accepted" | "rejected"): Promise<void> {
  const params = { command: command.command, arguments: [command.arguments?.[0], outcome] as unknown[] };
  // A server that ends meanwhile has a message of its own.
  await client.sendRequest(ExecuteCommandRequest.type, params).catch(() => undefined);
}
