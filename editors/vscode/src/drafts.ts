/** Draws the draft of a fill after the old text, which is dimmed. */
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { layOut, type LineSource } from "./draftLayout";
import { draftChanged, type Draft } from "./protocol";

export class Drafts implements vscode.Disposable {
  private readonly newText = vscode.window.createTextEditorDecorationType({
    after: { color: new vscode.ThemeColor("editorGhostText.foreground"), fontStyle: "italic" },
    rangeBehavior: vscode.DecorationRangeBehavior.ClosedClosed,
  });
  private readonly oldText = vscode.window.createTextEditorDecorationType({ opacity: "0.35", textDecoration: "line-through" });

  dispose(): void {
    this.newText.dispose();
    this.oldText.dispose();
  }

  /** Draw the drafts from this client's server. */
  listen(client: LanguageClient): vscode.Disposable {
    return client.onNotification(draftChanged, (draft) => {
      this.draw(client, draft);
    });
  }

  /** Remove all drafts from the screen. */
  clear(): void {
    for (const editor of vscode.window.visibleTextEditors) this.show(editor, [], []);
  }

  private draw(client: LanguageClient, draft: Draft): void {
    const convert = client.protocol2CodeConverter;
    const uri = convert.asUri(draft.textDocument.uri).toString();
    const isEnabled = vscode.workspace.getConfiguration("dgLsp").get<boolean>("client.showDrafts", true);
    for (const editor of vscode.window.visibleTextEditors) {
      if (editor.document.uri.toString() !== uri) continue;
      // The positions of a draft are valid only for its version of the document.
      if (draft.done || !isEnabled || editor.document.version !== draft.textDocument.version) {
        this.show(editor, [], []);
        continue;
      }
      const newText = layOut(draft.holes, linesOfEditor(editor)).map(({ line, character, text }) => {
        const position = new vscode.Position(line, character);
        return { range: new vscode.Range(position, position), renderOptions: { after: { contentText: text } } };
      });
      const oldText = draft.holes.filter((hole) => hole.text.trim() !== "").map((hole) => convert.asRange(hole.range));
      this.show(editor, newText, oldText);
    }
  }

  private show(editor: vscode.TextEditor, newText: vscode.DecorationOptions[], oldText: vscode.Range[]): void {
    editor.setDecorations(this.newText, newText);
    editor.setDecorations(this.oldText, oldText);
  }
}

/** Return the lines of an editor as `layOut` needs them. */
export function linesOfEditor({ document, options }: vscode.TextEditor): LineSource {
  return {
    lineCount: document.lineCount,
    lineAt: (line) => document.lineAt(line).text,
    // In an open editor this is always a number, even if the setting is "auto".
    tabSize: typeof options.tabSize === "number" ? options.tabSize : 4,
  };
}
