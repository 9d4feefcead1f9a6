import assert from "node:assert/strict";
import { test } from "node:test";
import { strokes, width, type Paper } from "../src/picture";

const paper = (text: string): Paper => {
  const lines = text.split("\n");
  return { lineCount: lines.length, lineAt: (line) => lines[line] ?? "", tabSize: 4 };
};

/** Return the hole at the nth "...", with a text to draw. */
function hole(text: string, draft: string, n = 0) {
  const lines = text.split("\n").flatMap((line, idx) => (line.includes("...") ? [{ line: idx, character: line.indexOf("...") }] : []));
  const start = lines[n];
  assert.ok(start);
  return { range: { start, end: { ...start, character: start.character + 3 } }, text: draft };
}

/** Return the text with all that is drawn, as it is seen. */
function seen(text: string, ...drafts: string[]): string {
  const lines = text.split("\n");
  for (const stroke of strokes(drafts.map((draft, n) => hole(text, draft, n)), paper(text))) {
    const line = lines[stroke.line] ?? "";
    lines[stroke.line] = line.slice(0, stroke.character) + stroke.text.replaceAll("\u00a0", " ") + line.slice(stroke.character);
  }
  return lines.join("\n");
}

test("one line is drawn behind what it replaces", () => {
  assert.equal(seen("def f():\n    ...  # why", "return 1"), "def f():\n    ... return 1  # why");
});

test("several lines are drawn beside those that stand there, indented among themselves", () => {
  assert.equal(
    seen("def f(x):\n    ...\n\ndef longer(y):\n    pass\n", "if x:\n        return 1\n    return 2"),
    ["def f(x):", "    ...         │ if x:", "                │     return 1", "def longer(y):  │ return 2", "    pass", ""].join("\n"),
  );
});

test("at the end of a file they begin higher", () => {
  assert.equal(seen("def f():\n    ...", "a = 1\n    return a"), "def f():  │ a = 1\n    ...   │ return a");
});

test("what finds no line goes onto the last", () => {
  assert.equal(seen("f:\n  ...", "a\n  b\n  c"), "f:     │ a\n  ...  │ b ↵ c");
  assert.equal(seen("...", "a\nb\nc"), "... a ↵ b ↵ c");
});

test("the drawings of two holes keep off each other", () => {
  assert.equal(
    seen("a:\n  ...\nb:\n  ...\n\n", "1\n  2\n  3", "4\n  5"),
    ["a:     │ 1", "  ...  │ 2", "b:     │ 3", "  ...  │ 4", "       │ 5", ""].join("\n"),
  );
});

test("tabs and wide characters take their columns", () => {
  assert.equal(width("\tx", 4), 5);
  assert.equal(width("日本😀é", 4), 7);
  assert.equal(
    seen("def f():\n\t...\n'日本'\n", "if x:\n\t\treturn 1"),
    ["def f():", "\t...  │ if x:", "'日本'   │     return 1", ""].join("\n"),
  );
});

test("lines that leave no room are left alone", () => {
  assert.equal(seen(`...\n${"x".repeat(120)}`, "a\nb"), `... a ↵ b\n${"x".repeat(120)}`);
});

test("line ends of every kind are drawn alike", () => {
  assert.equal(seen("...", "a\r\nb\rc\nd"), "... a ↵ b ↵ c ↵ d");
});

test("no space is left that the screen would drop", () => {
  const [stroke] = strokes([hole("...", "a  b")], paper("..."));
  assert.ok(stroke);
  assert.ok(!stroke.text.includes(" "));
});

test("nothing is drawn for nothing, and little for very much", () => {
  assert.deepEqual(strokes([hole("...", " \n ")], paper("...")), []);
  assert.equal(strokes([hole("...", "x".repeat(1000))], paper("..."))[0]?.text.length, 400);
});
