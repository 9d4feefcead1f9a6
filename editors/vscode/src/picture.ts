/** A fill under way, as something that can be drawn on lines that exist already. Pure; knows nothing of the editor. */
import type { DraftHole } from "./protocol";

/** Text to draw behind a place, and what of the old text it will replace. Positions are the protocol's. */
export interface Stroke {
  line: number;
  character: number;
  text: string;
  replaced: DraftHole["range"];
}

/** Room for so many characters; what goes on behind the window's edge is seen by nobody. */
const MAX_CHARS = 400;
/** Stands for a line break, where there is no line yet to draw on. */
const BREAK = "↵";

/** Return what to draw for the holes of a draft. */
export function strokes(holes: readonly DraftHole[]): Stroke[] {
  return holes
    .filter((hole) => hole.text.trim() !== "")
    .map((hole) => ({
      line: hole.range.end.line,
      character: hole.range.end.character,
      text: oneLine(hole.text),
      replaced: hole.range,
    }));
}

/** Return the text on one line, its indentation left out and its spaces such that none of them is lost on the screen. */
export function oneLine(text: string): string {
  const lines = text
    .split(/\r\n|\r|\n/)
    .map((line) => line.trim())
    .filter((line) => line !== "");
  const joined = lines.join(` ${BREAK} `);
  const cut = joined.length > MAX_CHARS ? `${joined.slice(0, MAX_CHARS - 1)}…` : joined;
  return ` ${cut}`.replaceAll(" ", "\u00a0");
}
