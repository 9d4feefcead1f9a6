/** Reports a finished fill: the model's confidence, and for several fills a list to review. */
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import type { FillAnswer, FilledPart, FillParams } from "./protocol";
import { complete } from "./walkthrough";

const MESSAGE_MS = 10_000;

/** Show a message in the status bar for some seconds. */
export function showBriefMessage(text: string): void {
  vscode.window.setStatusBarMessage(`dg-lsp: ${text}`, MESSAGE_MS);
}

/** Report the result of a fill. */
export function reportFill(client: LanguageClient, params: FillParams, answer: FillAnswer): void {
  if (!answer.applied || !answer.fills) return;
  complete("hasFilled");
  if (answer.fills.length > 1) review(client, params, answer.fills, answer.nHoles ?? answer.fills.length);
  else if (answer.note) showBriefMessage(`filled (${answer.note})`);
}

/** List the fills with their confidence; selecting an entry shows the fill. */
function review(client: LanguageClient, params: FillParams, fills: readonly FilledPart[], nHoles: number): void {
  const uri = client.protocol2CodeConverter.asUri(params.textDocument.uri);
  const editor = vscode.window.visibleTextEditors.find(({ document }) => document.uri.toString() === uri.toString());
  if (!editor) return;
  const entries = fills.map((part) => ({
    label: part.text.trim().split("\n", 1)[0] ?? "",
    description: `line ${part.range.start.line + 1}, ${part.confidence}`,
    range: client.protocol2CodeConverter.asRange(part.range),
  }));
  const list = vscode.window.createQuickPick<(typeof entries)[number]>();
  list.title = `dg-lsp: ${fills.length} of ${nHoles} holes filled`;
  list.placeholder = "Select a fill to review it; one undo removes all fills";
  list.items = entries;
  const show = ([entry]: readonly (typeof entries)[number][], select: boolean) => {
    if (!entry) return;
    editor.revealRange(entry.range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    if (select) editor.selection = new vscode.Selection(entry.range.start, entry.range.end);
  };
  list.onDidChangeActive((active) => {
    show(active, false);
  });
  list.onDidAccept(() => {
    show(list.selectedItems, true);
    list.hide();
  });
  list.onDidHide(() => {
    list.dispose();
  });
  list.show();
}
