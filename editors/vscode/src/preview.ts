/** Shows a change as a diff before it is applied, and returns whether the user accepts it. */
import * as path from "node:path";
import * as vscode from "vscode";

const SCHEME = "dg-lsp-preview";

export class Preview implements vscode.Disposable {
  private text = "";
  private previewCount = 0;
  private readonly provider = vscode.workspace.registerTextDocumentContentProvider(SCHEME, {
    provideTextDocumentContent: () => this.text,
  });

  dispose(): void {
    this.provider.dispose();
  }

  /** Return whether the user accepts the edits of a document; the title names the action and the confidence. */
  async ask(document: vscode.TextDocument, edits: readonly vscode.TextEdit[], title: string): Promise<boolean> {
    const editor = vscode.window.activeTextEditor;
    this.text = withEdits(document, edits);
    // VS Code caches a document by its URI, so use a new one each time.
    const proposed = vscode.Uri.from({ scheme: SCHEME, path: document.uri.path, query: String(++this.previewCount) });
    const name = path.posix.basename(document.uri.path);
    const isBelow = isHidden(document, edits);
    if (isBelow) await vscode.commands.executeCommand("workbench.action.newGroupBelow");
    await vscode.commands.executeCommand("vscode.diff", document.uri, proposed, `${name}: ${title}`, { preview: true });
    const apply = "Apply";
    const picked = await vscode.window.showQuickPick([apply, "Keep the old text"], { title, placeHolder: "The diff shows the change", ignoreFocusOut: true });
    const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);
    const shown = tabs.filter(({ input }) => input instanceof vscode.TabInputTextDiff && input.modified.toString() === proposed.toString());
    const groups = shown.map((tab) => tab.group);
    await vscode.window.tabGroups.close(shown);
    // A setting of the user's keeps empty groups.
    if (isBelow) await vscode.window.tabGroups.close(groups.filter((group) => vscode.window.tabGroups.all.includes(group) && !group.tabs.length));
    if (editor?.document === document) await vscode.window.showTextDocument(document, { viewColumn: editor.viewColumn ?? vscode.ViewColumn.Active, selection: editor.selection });
    return picked === apply;
  }
}

/** The question covers so many lines at the top of an editor. */
const HIDDEN_LINES = 8;

/** Return whether the question would cover the change. The diff scrolls to the first change, but not above the first line. */
function isHidden(document: vscode.TextDocument, edits: readonly vscode.TextEdit[]): boolean {
  const isFolded = vscode.workspace.getConfiguration("diffEditor", document).get<boolean>("hideUnchangedRegions.enabled");
  return isFolded === true || Math.min(...edits.map(({ range }) => range.start.line)) < HIDDEN_LINES;
}

/** Return a document's text with edits, which do not overlap. */
function withEdits(document: vscode.TextDocument, edits: readonly vscode.TextEdit[]): string {
  let text = document.getText();
  const spans = edits.map(({ range, newText }) => ({ start: document.offsetAt(range.start), end: document.offsetAt(range.end), newText }));
  for (const { start, end, newText } of spans.sort((one, other) => other.start - one.start)) {
    text = text.slice(0, start) + newText + text.slice(end);
  }
  return text;
}
