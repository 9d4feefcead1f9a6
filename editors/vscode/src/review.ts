/** Reports a finished fill: the model's confidence, and for several fills a list to review. */
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import type { FillAnswer, FilledPart, Wanted } from "./protocol";

const BRIEFLY_MS = 10_000;

/** Show a message in the status bar for some seconds. */
export function sayBriefly(text: string): void {
  vscode.window.setStatusBarMessage(`dg-lsp: ${text}`, BRIEFLY_MS);
}

/** Report the result of a fill. */
export function tellFilled(client: LanguageClient, wanted: Wanted, answer: FillAnswer): void {
  if (!answer.applied || !answer.fills) return;
  if (answer.fills.length > 1) review(client, wanted, answer.fills, answer.nHoles ?? answer.fills.length);
  else if (answer.note) sayBriefly(`filled (${answer.note})`);
}

/** List the fills with their confidence; selecting an entry shows the fill. */
function review(client: LanguageClient, wanted: Wanted, fills: readonly FilledPart[], nHoles: number): void {
  const uri = client.protocol2CodeConverter.asUri(wanted.textDocument.uri);
  const editor = vscode.window.visibleTextEditors.find(({ document }) => document.uri.toString() === uri.toString());
  if (!editor) return;
  const entries = fills.map((part) => ({
    label: part.text.trim().split("\n", 1)[0] ?? "",
    description: `line ${part.range.start.line + 1}, ${part.confidence}`,
    range: client.protocol2CodeConverter.asRange(part.range),
  }));
  const list = vscode.window.createQuickPick<(typeof entries)[number]>();
  list.title = `dg-lsp: ${fills.length} of ${nHoles} holes filled`;
  list.placeholder = "Look through the fills; undo takes them all back";
  list.items = entries;
  const go = ([entry]: readonly (typeof entries)[number][], select: boolean) => {
    if (!entry) return;
    editor.revealRange(entry.range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    if (select) editor.selection = new vscode.Selection(entry.range.start, entry.range.end);
  };
  list.onDidChangeActive((active) => {
    go(active, false);
  });
  list.onDidAccept(() => {
    go(list.selectedItems, true);
    list.hide();
  });
  list.onDidHide(() => {
    list.dispose();
  });
  list.show();
}
