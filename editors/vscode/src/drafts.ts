/** Draws a fill while it is written, behind the old text, which fades. */
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { strokes } from "./picture";
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

  /** Draw what this client's server sends. */
  listen(client: LanguageClient): vscode.Disposable {
    return client.onNotification(draftChanged, (draft) => {
      this.draw(client, draft);
    });
  }

  /** Take everything off the screen. */
  clear(): void {
    for (const editor of vscode.window.visibleTextEditors) this.show(editor, [], []);
  }

  private draw(client: LanguageClient, draft: Draft): void {
    const convert = client.protocol2CodeConverter;
    const uri = convert.asUri(draft.textDocument.uri).toString();
    const wanted = vscode.workspace.getConfiguration("dgLsp").get<boolean>("client.showDrafts", true);
    for (const editor of vscode.window.visibleTextEditors) {
      if (editor.document.uri.toString() !== uri) continue;
      // A draft of another version would be drawn in the wrong places.
      if (draft.done || !wanted || editor.document.version !== draft.textDocument.version) {
        this.show(editor, [], []);
        continue;
      }
      const drawn = strokes(draft.holes);
      const coming = drawn.map((stroke) => {
        const at = new vscode.Position(stroke.line, stroke.character);
        return { range: new vscode.Range(at, at), renderOptions: { after: { contentText: stroke.text } } };
      });
      this.show(editor, coming, drawn.map((stroke) => convert.asRange(stroke.replaced)));
    }
  }

  private show(editor: vscode.TextEditor, coming: vscode.DecorationOptions[], going: vscode.Range[]): void {
    editor.setDecorations(this.coming, coming);
    editor.setDecorations(this.going, going);
  }
}
