import assert from "node:assert/strict";
import { test } from "node:test";
import { layOutEdit } from "../src/editLayout";

const LINES = ["a = area(2)", "print(a)", "😀 = 1", ""];

/** Return each part as its line, what is struck there, and the new text; undefined if nothing changes. */
function parts(start: [number, number], end: [number, number], text: string) {
  const range = { start: { line: start[0], character: start[1] }, end: { line: end[0], character: end[1] } };
  const layout = layOutEdit({ range, text }, (line) => LINES[line] ?? "");
  return layout?.holes.map(({ range: { start, end }, text }) => {
    const struck = LINES.slice(start.line, end.line + 1).map((line, idx, all) => line.slice(idx ? 0 : start.character, idx === all.length - 1 ? end.character : undefined));
    return [start.line, struck.join("\n"), text];
  });
}

const ROWS: [string, [number, number], [number, number], string, (number | string)[][] | undefined][] = [
  ["a part of a line", [0, 0], [0, 11], "a = size(2)", [[0, "area", "size"]]],
  ["two lines", [0, 0], [1, 8], "b = area(2)\nprint(b)", [[0, "a", "b"], [1, "a", "b"]]],
  ["half of a pair stays whole", [2, 0], [2, 6], "😁 = 1", [[2, "😀", "😁"]]],
  ["an inserted line", [1, 0], [1, 0], "exit()\n", [[0, "", "↵ exit()"]]],
  ["the first line", [0, 0], [0, 0], "import a\n", [[0, "", "↵ import a"]]],
  ["behind the last line end", [3, 0], [3, 0], "x\ny\n", [[2, "", "x\ny"]]],
  ["a removed line", [1, 0], [2, 0], "", [[1, "print(a)", ""]]],
  ["more lines than before", [1, 0], [1, 8], "if a:\n    print(a)", [[1, "print(a)", "if a:\n    print(a)"]]],
  ["nothing", [1, 0], [1, 8], "print(a)", undefined],
];

for (const [name, start, end, text, expected] of ROWS) {
  test(`an edit of ${name}`, () => {
    assert.deepEqual(parts(start, end, text), expected);
  });
}
