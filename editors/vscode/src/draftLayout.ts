/** Lays out a draft beside the existing lines. Pure; does not import the editor's API. */
import type { DraftHole } from "./protocol";

/** The parts of a document that determine where there is room to draw. */
export interface LineSource {
  readonly lineCount: number;
  lineAt(line: number): string;
  tabSize: number;
}

/** Text to draw after a position, which is counted as in the protocol. */
export interface VirtualText {
  line: number;
  character: number;
  text: string;
}

/** The largest length of a drawn text; more would be outside the window. */
const MAX_CHARS = 400;
/** Beside a longer line there is no room for a draft. */
const MAX_COLUMN = 100;
/** Drawn in place of a line break if there is no further line to draw on. */
const BREAK = "↵";
/** Drawn to the left of a text of several lines, to separate it from the document. */
const EDGE = "│";

/**
 * Return the texts to draw for the holes of a draft.
 *
 * One line is drawn after the text that it replaces. VS Code extensions can't insert lines for display only, so several lines
 * are drawn beside existing lines, from the hole downwards, to the right of the longest of them. If the document or the next
 * hole leaves too few lines, they begin higher. Lines that still do not fit are joined to the last one.
 */
export function layOut(holes: readonly DraftHole[], document: LineSource): VirtualText[] {
  const inOrder = [...holes].sort((one, two) => one.range.start.line - two.range.start.line);
  const texts: VirtualText[] = [];
  let firstFree = 0;
  inOrder.forEach((hole, idx) => {
    const draftLines = draftLinesOf(hole, document);
    const next = inOrder[idx + 1]?.range.start.line ?? document.lineCount;
    const rows =
      draftLines.length > 1 ? rowsFor(hole, draftLines.length, firstFree, Math.max(next, hole.range.end.line + 1), document) : undefined;
    if (rows === undefined) {
      if (draftLines.length > 0) texts.push({ ...hole.range.end, text: toDisplay(` ${draftLines.map((line) => line.trim()).join(` ${BREAK} `)}`) });
      firstFree = hole.range.end.line + 1;
      return;
    }
    const widths = rows.map((row) => width(document.lineAt(row), document.tabSize));
    const column = Math.max(...widths) + 2;
    rows.forEach((row, n) => {
      const text =
        n === rows.length - 1
          ? draftLines
              .slice(n)
              .map((line, idx) => (idx > 0 ? line.trim() : line))
              .join(` ${BREAK} `)
          : draftLines[n];
      const padding = " ".repeat(column - (widths[n] ?? 0));
      texts.push({ line: row, character: document.lineAt(row).length, text: toDisplay(`${padding}${EDGE} ${text ?? ""}`) });
    });
    firstFree = Math.max(hole.range.end.line, rows.at(-1) ?? 0) + 1;
  });
  return texts;
}

/** Return at most n rows beside which lines can be drawn, between a first free row and an end. Return undefined if fewer than
 * two rows are free, or if one of their lines is too long. */
function rowsFor(hole: DraftHole, n: number, firstFree: number, end: number, document: LineSource): number[] | undefined {
  const last = Math.min(end, document.lineCount, hole.range.start.line + n);
  const first = Math.max(firstFree, last - n);
  const rows = Array.from({ length: last - first }, (_, idx) => first + idx);
  const isNarrow = rows.every((row) => width(document.lineAt(row), document.tabSize) <= MAX_COLUMN);
  return rows.length > 1 && isNarrow ? rows : undefined;
}

/** Return the lines of a hole's draft without their common indentation and without blank lines at the start and end. */
function draftLinesOf(hole: DraftHole, document: LineSource): string[] {
  const [first, ...others] = hole.text.split(/\r\n|\r|\n/);
  // The first line begins at the hole, so its indentation is in the document.
  const before = document.lineAt(hole.range.start.line).slice(0, hole.range.start.character);
  const lead = before.trim() === "" ? before : (/^\s*/.exec(before)?.[0] ?? "");
  const lines = [lead + (first ?? ""), ...others].map((line) => expand(line, document.tabSize).trimEnd());
  while (lines.length > 0 && lines[0] === "") lines.shift();
  while (lines.length > 0 && lines.at(-1) === "") lines.pop();
  const indents = lines.filter((line) => line !== "").map((line) => line.length - line.trimStart().length);
  return lines.map((line) => line.slice(Math.min(...indents)));
}

function expand(line: string, tabSize: number): string {
  let out = "";
  for (const character of line) out += character === "\t" ? " ".repeat(tabSize - (out.length % tabSize)) : character;
  return out;
}

/** Return the columns of a line in a monospaced font; CJK characters and emoji have two. */
export function width(line: string, tabSize: number): number {
  let columns = 0;
  for (const character of line) {
    if (character === "\t") columns += tabSize - (columns % tabSize);
    else columns += isWide(character) ? 2 : 1;
  }
  return columns;
}

function isWide(character: string): boolean {
  return /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Emoji_Presentation}\u3000-\u303f\uff01-\uff60]/u.test(character);
}

/** Return the text truncated to MAX_CHARS, with non-breaking spaces, because VS Code collapses ordinary ones. */
function toDisplay(text: string): string {
  const cut = text.length > MAX_CHARS ? `${text.slice(0, MAX_CHARS - 1)}…` : text;
  return cut.replaceAll(" ", "\u00a0");
}
