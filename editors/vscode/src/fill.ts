/** The commands that fill: they ask the server, which answers with an edit and shows its progress by itself. */
import * as vscode from "vscode";
import { CodeActionRequest, CodeActionTriggerKind, ExecuteCommandRequest, ResponseError, LSPErrorCodes } from "vscode-languageclient";
import type { LanguageClient } from "vscode-languageclient/node";
import { serverCommands, type Wanted, type What } from "./protocol";

/** Do the first of these that the server offers at the cursor, or say that there is none. */
export async function fillHere(client: LanguageClient, whats: readonly What[], nothing: string): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  if (!editor) return;
  const actions = await client.sendRequest(CodeActionRequest.type, {
    textDocument: client.code2ProtocolConverter.asTextDocumentIdentifier(editor.document),
    range: client.code2ProtocolConverter.asRange(editor.selection),
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

function wantedAt(client: LanguageClient, what: What): Wanted | undefined {
  const editor = vscode.window.activeTextEditor;
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
  try {
    await client.sendRequest(ExecuteCommandRequest.type, { command: serverCommands.fill, arguments: [wanted] });
  } catch (error) {
    if (error instanceof ResponseError && error.code === LSPErrorCodes.RequestCancelled) return;
    void vscode.window.showWarningMessage(`dg-lsp: ${error instanceof Error ? error.message : String(error)}`);
  }
}
