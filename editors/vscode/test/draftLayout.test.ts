import assert from "node:assert/strict";
import { test } from "node:test";
import { layOut, width, type LineSource } from "../src/draftLayout";

const toLines = (text: string): LineSource => {
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

/** Return the text with the drawn texts, as it appears on the screen. */
function displayed(text: string, ...drafts: string[]): string {
  const lines = text.split("\n");
  for (const virtualText of layOut(drafts.map((draft, n) => hole(text, draft, n)), toLines(text))) {
    const line = lines[virtualText.line] ?? "";
    lines[virtualText.line] = line.slice(0, virtualText.character) + virtualText.text.replaceAll("\u00a0", " ") + line.slice(virtualText.character);
  }
  return lines.join("\n");
}

test("one line is drawn after the text that it replaces", () => {
  assert.equal(displayed("def f():\n    ...  # why", "return 1"), "def f():\n    ... return 1  # why");
});

test("several lines are drawn beside the existing lines with their relative indentation", () => {
  assert.equal(
    displayed("def f(x):\n    ...\n\ndef longer(y):\n    pass\n", "if x:\n        return 1\n    return 2"),
    ["def f(x):", "    ...         │ if x:", "                │     return 1", "def longer(y):  │ return 2", "    pass", ""].join("\n"),
  );
});

test("at the end of a file the lines begin higher", () => {
  assert.equal(displayed("def f():\n    ...", "a = 1\n    return a"), "def f():  │ a = 1\n    ...   │ return a");
});

test("lines without a free row are joined to the last one", () => {
  assert.equal(displayed("f:\n  ...", "a\n  b\n  c"), "f:     │ a\n  ...  │ b ↵ c");
  assert.equal(displayed("...", "a\nb\nc"), "... a ↵ b ↵ c");
});

test("the drafts of two holes do not overlap", () => {
  assert.equal(
    displayed("a:\n  ...\nb:\n  ...\n\n", "1\n  2\n  3", "4\n  5"),
    ["a:     │ 1", "  ...  │ 2", "b:     │ 3", "  ...  │ 4", "       │ 5", ""].join("\n"),
  );
});

test("tabs and wide characters count with their width", () => {
  assert.equal(width("\tx", 4), 5);
  assert.equal(width("日本😀é", 4), 7);
  assert.equal(
    displayed("def f():\n\t...\n'日本'\n", "if x:\n\t\treturn 1"),
    ["def f():", "\t...  │ if x:", "'日本'   │     return 1", ""].join("\n"),
  );
});

test("nothing is drawn beside lines that are too long", () => {
  assert.equal(displayed(`...\n${"x".repeat(120)}`, "a\nb"), `... a ↵ b\n${"x".repeat(120)}`);
});

test("all kinds of line ends are drawn the same", () => {
  assert.equal(displayed("...", "a\r\nb\rc\nd"), "... a ↵ b ↵ c ↵ d");
});

test("spaces become non-breaking spaces", () => {
  const [virtualText] = layOut([hole("...", "a  b")], toLines("..."));
  assert.ok(virtualText);
  assert.ok(!virtualText.text.includes(" "));
});

test("a blank draft is not drawn and a long one is truncated", () => {
  assert.deepEqual(layOut([hole("...", " \n ")], toLines("...")), []);
  assert.equal(layOut([hole("...", "x".repeat(1000))], toLines("..."))[0]?.text.length, 400);
});
