/** Draws the draft of a fill after the old text, which is dimmed. */
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { strokes, type Paper } from "./picture";
import { draftChanged, type Draft } from "./protocol";

export class Drafts implements vscode.Disposable {
  private readonly coming = vscode.window.createTextEditorDecorationType({
    after: { color: new vscode.ThemeColor("editorGhostText.foreground"), fontStyle: "italic" },
    rangeBehavior: vscode.DecorationRangeBehavior.ClosedClosed,
  });
  private readonly going = vscode.window.createTextEditorDecorationType({ opacity: "0.35", textDecoration: "line-through" });

  dispose(): void {
    this.coming.dispose();
    this.going.dispose();
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
    const wanted = vscode.workspace.getConfiguration("dgLsp").get<boolean>("client.showDrafts", true);
    for (const editor of vscode.window.visibleTextEditors) {
      if (editor.document.uri.toString() !== uri) continue;
      // The positions of a draft are valid only for its version of the document.
      if (draft.done || !wanted || editor.document.version !== draft.textDocument.version) {
        this.show(editor, [], []);
        continue;
      }
      const coming = strokes(draft.holes, paperOf(editor)).map((stroke) => {
        const at = new vscode.Position(stroke.line, stroke.character);
        return { range: new vscode.Range(at, at), renderOptions: { after: { contentText: stroke.text } } };
      });
      const going = draft.holes.filter((hole) => hole.text.trim() !== "").map((hole) => convert.asRange(hole.range));
      this.show(editor, coming, going);
    }
  }

  private show(editor: vscode.TextEditor, coming: vscode.DecorationOptions[], going: vscode.Range[]): void {
    editor.setDecorations(this.coming, coming);
    editor.setDecorations(this.going, going);
  }
}

function paperOf({ document, options }: vscode.TextEditor): Paper {
  return {
    lineCount: document.lineCount,
    lineAt: (line) => document.lineAt(line).text,
    // Once an editor is open this is a number, whatever the setting says.
    tabSize: typeof options.tabSize === "number" ? options.tabSize : 4,
  };
}
