/** Finds what a next edit changes, line by line, and where to draw it. Pure; does not import the editor's API. */
import type { DraftHole } from "./protocol";

/** What is struck, and the texts beside it; both are in the order of the lines. */
export interface EditLayout {
  holes: DraftHole[];
  /** The first and the last line that changes; an insertion is beside the line above it. */
  first: number;
  last: number;
}

/** Return how many UTF-16 units two lines have in common at the start, and then at the end, without half of a pair. */
function common(old: string, text: string): [head: number, tail: number] {
  const least = Math.min(old.length, text.length);
  const isHalf = (unit: number, start: number) => unit >= start && unit < start + 0x400;
  let head = 0;
  while (head < least && old[head] === text[head]) head++;
  if (head > 0 && isHalf(old.charCodeAt(head - 1), 0xd800)) head--;
  let tail = 0;
  while (tail < least - head && old[old.length - 1 - tail] === text[text.length - 1 - tail]) tail++;
  if (tail > 0 && isHalf(old.charCodeAt(old.length - tail), 0xdc00)) tail--;
  return [head, tail];
}

/** Return the parts of a change of whole lines; undefined if it changes nothing. `lineAt` gives "" behind the last line. */
export function layOutEdit(edit: DraftHole, lineAt: (line: number) => string): EditLayout | undefined {
  const { start, end } = edit.range;
  const old = Array.from({ length: end.line - start.line + 1 }, (_, idx) => lineAt(start.line + idx));
  const whole = lineAt(start.line).slice(0, start.character) + edit.text + lineAt(end.line).slice(end.character);
  const lines = whole.split(/\r\n|\r|\n/);
  let first = start.line;
  while (old.length > 0 && lines.length > 0 && old.at(-1) === lines.at(-1)) {
    old.pop();
    lines.pop();
  }
  while (old.length > 0 && lines.length > 0 && old[0] === lines[0]) {
    old.shift();
    lines.shift();
    first++;
  }
  if (old.length + lines.length === 0) return undefined;
  const last = first + Math.max(old.length - 1, 0);
  const at = (line: number, from: number, to: number) => ({ start: { line, character: from }, end: { line, character: to } });
  if (old.length === 0) {
    // Lines are inserted, so they are drawn behind the line above.
    const above = Math.max(first - 1, 0);
    const text = lines.length === 1 ? `↵ ${(lines[0] ?? "").trim()}` : lines.join("\n");
    const character = first === 0 ? 0 : lineAt(above).length;
    return { holes: [{ range: at(above, character, character), text }], first: above, last: first };
  }
  if (old.length === lines.length) {
    const holes = old.map((line, idx) => {
      const text = lines[idx] ?? "";
      const [head, tail] = common(line, text);
      return { range: at(first + idx, head, line.length - tail), text: text.slice(head, text.length - tail) };
    });
    return { holes, first, last };
  }
  const indent = /^\s*/.exec(old[0] ?? "")?.[0].length ?? 0;
  const range = { start: { line: first, character: indent }, end: { line: last, character: lineAt(last).length } };
  // The indentation of the first line is in the document.
  return { holes: [{ range, text: lines.join("\n").replace(/^\s+/, "") }], first, last };
}
