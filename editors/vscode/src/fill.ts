/** The commands that fill: they send a request to the server, which sends the edit and shows its own progress. */
import * as vscode from "vscode";
import {
  CodeActionRequest,
  CodeActionTriggerKind,
  ErrorCodes,
  ExecuteCommandRequest,
  LSPErrorCodes,
  ResponseError,
} from "vscode-languageclient";
import type { LanguageClient } from "vscode-languageclient/node";
import { serverCommands, type FillAnswer, type FillParams, type What } from "./protocol";
import { reportFill } from "./review";
import { SELECTOR } from "./server";
import { withCancellation } from "./runningFills";

/** Run the first of these actions that the server offers at the cursor, or show `noneMessage`. */
export async function fillHere(client: LanguageClient, kinds: readonly What[], noneMessage: string): Promise<void> {
  const editor = editorToFill();
  if (!editor) return;
  const at = client.code2ProtocolConverter.asPosition(editor.selection.active);
  const actions = await client.sendRequest(CodeActionRequest.type, {
    textDocument: client.code2ProtocolConverter.asTextDocumentIdentifier(editor.document),
    // These actions depend on the cursor only, not on the selection.
    range: { start: at, end: at },
    context: { diagnostics: [], triggerKind: CodeActionTriggerKind.Invoked },
  });
  for (const kind of kinds) {
    for (const action of actions ?? []) {
      const params = "data" in action ? (action.data as FillParams | undefined) : undefined;
      if (params?.do === kind) {
        await fill(client, params);
        return;
      }
    }
  }
  void vscode.window.showInformationMessage(`dg-lsp: ${noneMessage}`);
}

/** Fill all holes of the active file. */
export async function fillFile(client: LanguageClient): Promise<void> {
  const params = paramsAt(client, "all");
  if (params) await fill(client, params);
}

/** Regenerate the selection, with the user's instruction. */
export async function regenerate(client: LanguageClient): Promise<void> {
  const params = paramsAt(client, "regenerate");
  if (!params) return;
  if (vscode.window.activeTextEditor?.selection.isEmpty) {
    void vscode.window.showInformationMessage("dg-lsp: nothing is selected");
    return;
  }
  const instruction = await vscode.window.showInputBox({
    title: "Regenerate the selection",
    prompt: "What should it do? Leave this empty to let the model choose.",
  });
  // Escape returns undefined and cancels; Enter without text returns "".
  if (instruction !== undefined) await fill(client, { ...params, instruction });
}

/** Return the active editor. If nothing can be filled there, show the reason and return undefined. */
function editorToFill(): vscode.TextEditor | undefined {
  const editor = vscode.window.activeTextEditor;
  if (editor && vscode.languages.match(SELECTOR, editor.document) > 0) return editor;
  const reason = editor ? "this document cannot be filled" : "open a file first, and put the cursor into a hole";
  void vscode.window.showInformationMessage(`dg-lsp: ${reason}`);
  return undefined;
}

/** Return the parameters of an action at the selection of the active editor. */
function paramsAt(client: LanguageClient, kind: What): FillParams | undefined {
  const editor = editorToFill();
  if (!editor) return undefined;
  return {
    do: kind,
    textDocument: {
      uri: client.code2ProtocolConverter.asUri(editor.document.uri),
      version: editor.document.version,
    },
    range: client.code2ProtocolConverter.asRange(editor.selection),
  };
}

async function fill(client: LanguageClient, params: FillParams): Promise<void> {
  const request = { command: serverCommands.fill, arguments: [params] };
  const answer = (await withCancellation((token) => client.sendRequest(ExecuteCommandRequest.type, request, token))) as FillAnswer;
  reportFill(client, params, answer);
}

/** Show the user why a request failed, unless the user cancelled it. */
export function showError(error: unknown): void {
  if (error instanceof ResponseError && error.code === LSPErrorCodes.RequestCancelled) return;
  const reason = isLost(error) ? "the server ended before the fill was complete" : error instanceof Error ? error.message : String(error);
  void vscode.window.showWarningMessage(`dg-lsp: ${reason}`);
}

/** Return whether a request failed because the server ended before its answer. */
export function isLost(error: unknown): boolean {
  return error instanceof ResponseError && error.code === ErrorCodes.PendingResponseRejected;
}
