/** The commands that fill: they ask the server, which answers with an edit and shows its progress by itself. */
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
import { serverCommands, type Wanted, type What } from "./protocol";
import { SELECTOR } from "./server";
import { whileUnderWay } from "./underWay";

/** Do the first of these that the server offers at the cursor, or say that there is none. */
export async function fillHere(client: LanguageClient, whats: readonly What[], nothing: string): Promise<void> {
  const editor = editorToFill();
  if (!editor) return;
  const at = client.code2ProtocolConverter.asPosition(editor.selection.active);
  const actions = await client.sendRequest(CodeActionRequest.type, {
    textDocument: client.code2ProtocolConverter.asTextDocumentIdentifier(editor.document),
    // What is selected is no matter here.
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

/** Fill all holes of the file that is looked at. */
export async function fillFile(client: LanguageClient): Promise<void> {
  const wanted = wantedAt(client, "all");
  if (wanted) await fill(client, wanted);
}

/** Write the selection anew, with what the user says of it. */
export async function regenerate(client: LanguageClient): Promise<void> {
  const wanted = wantedAt(client, "regenerate");
  if (!wanted) return;
  if (vscode.window.activeTextEditor?.selection.isEmpty) {
    void vscode.window.showInformationMessage("dg-lsp: nothing is selected");
    return;
  }
  const instruction = await vscode.window.showInputBox({
    title: "Write the selection anew",
    prompt: "What should it do? Leave this empty to let the model choose.",
  });
  // Escape ends it; Enter alone does not.
  if (instruction !== undefined) await fill(client, { ...wanted, instruction });
}

/** Return the editor that is looked at, or tell the user why nothing there is filled. */
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
  await whileUnderWay((token) => client.sendRequest(ExecuteCommandRequest.type, params, token));
}

/** Tell the user why a request came to nothing, if it was not the user's wish. */
export function tell(error: unknown): void {
  const code = error instanceof ResponseError ? error.code : undefined;
  if (code === LSPErrorCodes.RequestCancelled) return;
  const reason =
    code === ErrorCodes.PendingResponseRejected ? "the server ended before it was done" : error instanceof Error ? error.message : String(error);
  void vscode.window.showWarningMessage(`dg-lsp: ${reason}`);
}
