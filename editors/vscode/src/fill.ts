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
import { serverCommands, type FillAnswer, type Wanted, type What } from "./protocol";
import { tellFilled } from "./review";
import { SELECTOR } from "./server";
import { whileUnderWay } from "./underWay";

/** Run the first of these actions that the server offers at the cursor, or show the message `nothing`. */
export async function fillHere(client: LanguageClient, whats: readonly What[], nothing: string): Promise<void> {
  const editor = editorToFill();
  if (!editor) return;
  const at = client.code2ProtocolConverter.asPosition(editor.selection.active);
  const actions = await client.sendRequest(CodeActionRequest.type, {
    textDocument: client.code2ProtocolConverter.asTextDocumentIdentifier(editor.document),
    // These actions depend on the cursor only, not on the selection.
    range: { start: at, end: at },
    context: { diagnostics: [], triggerKind: CodeActionTriggerKind.Invoked },
  });
  for (const what of whats) {
    for (const action of actions ?? []) {
      const wanted = "data" in action ? (action.data as Wanted | undefined) : undefined;
      if (wanted?.do === what) {
        await fill(client, wanted);
        return;
      }
    }
  }
  void vscode.window.showInformationMessage(`dg-lsp: ${nothing}`);
}

/** Fill all holes of the active file. */
export async function fillFile(client: LanguageClient): Promise<void> {
  const wanted = wantedAt(client, "all");
  if (wanted) await fill(client, wanted);
}

/** Regenerate the selection, with the user's instruction. */
export async function regenerate(client: LanguageClient): Promise<void> {
  const wanted = wantedAt(client, "regenerate");
  if (!wanted) return;
  if (vscode.window.activeTextEditor?.selection.isEmpty) {
    void vscode.window.showInformationMessage("dg-lsp: nothing is selected");
    return;
  }
  const instruction = await vscode.window.showInputBox({
    title: "Regenerate the selection",
    prompt: "What should it do? Leave this empty to let the model choose.",
  });
  // Escape returns undefined and cancels; Enter without text returns "".
  if (instruction !== undefined) await fill(client, { ...wanted, instruction });
}

/** Return the active editor, or tell the user why nothing can be filled. */
function editorToFill(): vscode.TextEditor | undefined {
  const editor = vscode.window.activeTextEditor;
  if (editor && vscode.languages.match(SELECTOR, editor.document) > 0) return editor;
  const reason = editor ? "what is shown here is not a file to be filled" : "open a file first, and put the cursor where to fill";
  void vscode.window.showInformationMessage(`dg-lsp: ${reason}`);
  return undefined;
}

function wantedAt(client: LanguageClient, what: What): Wanted | undefined {
  const editor = editorToFill();
  if (!editor) return undefined;
  return {
    do: what,
    textDocument: {
      uri: client.code2ProtocolConverter.asUri(editor.document.uri),
      version: editor.document.version,
    },
    range: client.code2ProtocolConverter.asRange(editor.selection),
  };
}

async function fill(client: LanguageClient, wanted: Wanted): Promise<void> {
  const params = { command: serverCommands.fill, arguments: [wanted] };
  const answer = (await whileUnderWay((token) => client.sendRequest(ExecuteCommandRequest.type, params, token))) as FillAnswer;
  tellFilled(client, wanted, answer);
}

/** Tell the user why a request failed, unless the user cancelled it. */
export function tell(error: unknown): void {
  const code = error instanceof ResponseError ? error.code : undefined;
  if (code === LSPErrorCodes.RequestCancelled) return;
  const reason =
    code === ErrorCodes.PendingResponseRejected ? "the server ended before it was done" : error instanceof Error ? error.message : String(error);
  void vscode.window.showWarningMessage(`dg-lsp: ${reason}`);
}
