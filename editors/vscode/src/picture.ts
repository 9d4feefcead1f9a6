/** Lays out a draft on lines that exist already. Pure; does not import the editor's API. */
import type { DraftHole } from "./protocol";

/** As much of a document as decides where there is room to draw. */
export interface Paper {
  readonly lineCount: number;
  lineAt(line: number): string;
  tabSize: number;
}

/** Text to draw behind a place. Positions are the protocol's. */
export interface Stroke {
  line: number;
  character: number;
  text: string;
}

/** Room for so many characters on a line; what goes on behind the window's edge is seen by nobody. */
const MAX_CHARS = 400;
/** Lines that are longer leave no room beside them. */
const MAX_COLUMN = 100;
/** Stands for a line break, where there is no line yet to draw on. */
const BREAK = "↵";
/** Stands left of text of several lines, which is drawn beside lines that are not its own. */
const EDGE = "│";

/**
 * Return what to draw for the holes of a draft.
 *
 * One line is drawn behind what it replaces. VS Code lets no extension put lines between lines, so several are drawn beside
 * the lines that stand there, from the hole downwards, behind the longest of them; where the document or the room before the
 * next hole ends too soon, they begin higher, and what finds no line goes onto the last.
 */
export function strokes(holes: readonly DraftHole[], paper: Paper): Stroke[] {
  const inOrder = [...holes].sort((one, two) => one.range.start.line - two.range.start.line);
  const drawn: Stroke[] = [];
  let free = 0;
  inOrder.forEach((hole, idx) => {
    const texts = linesOf(hole, paper);
    const next = inOrder[idx + 1]?.range.start.line ?? paper.lineCount;
    const rows = texts.length > 1 ? rowsFor(hole, texts.length, free, Math.max(next, hole.range.end.line + 1), paper) : undefined;
    if (rows === undefined) {
      if (texts.length > 0) drawn.push({ ...hole.range.end, text: unbroken(` ${texts.map((text) => text.trim()).join(` ${BREAK} `)}`) });
      free = hole.range.end.line + 1;
      return;
    }
    const widths = rows.map((row) => width(paper.lineAt(row), paper.tabSize));
    const column = Math.max(...widths) + 2;
    rows.forEach((row, n) => {
      const text = n === rows.length - 1 ? texts.slice(n).map((each, more) => (more ? each.trim() : each)).join(` ${BREAK} `) : texts[n];
      const before = " ".repeat(column - (widths[n] ?? 0));
      drawn.push({ line: row, character: paper.lineAt(row).length, text: unbroken(`${before}${EDGE} ${text ?? ""}`) });
    });
    free = Math.max(hole.range.end.line, rows.at(-1) ?? 0) + 1;
  });
  return drawn;
}

/** Return the lines beside which so many are drawn, from the first that is free to the last before an end; undefined where they
 * are too few or too long. */
function rowsFor(hole: DraftHole, n: number, free: number, end: number, paper: Paper): number[] | undefined {
  const last = Math.min(end, paper.lineCount, hole.range.start.line + n);
  const first = Math.max(free, last - n);
  const rows = Array.from({ length: last - first }, (_, idx) => first + idx);
  const isNarrow = rows.every((row) => width(paper.lineAt(row), paper.tabSize) <= MAX_COLUMN);
  return rows.length > 1 && isNarrow ? rows : undefined;
}

/** Return the lines of a hole's text without the indentation that they share, blank ones at either end left out. */
function linesOf(hole: DraftHole, paper: Paper): string[] {
  const [first, ...others] = hole.text.split(/\r\n|\r|\n/);
  // The first line stands where the hole begins.
  const before = paper.lineAt(hole.range.start.line).slice(0, hole.range.start.character);
  const lead = before.trim() === "" ? before : (/^\s*/.exec(before)?.[0] ?? "");
  const lines = [lead + (first ?? ""), ...others].map((line) => expand(line, paper.tabSize).trimEnd());
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

/** Return how many columns a line takes in a font whose letters are all as wide; CJK and emoji take two. */
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

/** Return the text such that none of its spaces is lost on the screen, and no longer than there is room for. */
function unbroken(text: string): string {
  const cut = text.length > MAX_CHARS ? `${text.slice(0, MAX_CHARS - 1)}…` : text;
  return cut.replaceAll(" ", "\u00a0");
}
