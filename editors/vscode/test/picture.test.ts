import assert from "node:assert/strict";
import { test } from "node:test";
import { oneLine, strokes } from "../src/picture";

const range = { start: { line: 3, character: 8 }, end: { line: 4, character: 12 } };
const seen = (text: string) => text.replaceAll("\u00a0", " ");

test("a draft is drawn behind what it replaces", () => {
  const [stroke] = strokes([{ range, text: "return 1\n        return 2" }]);
  assert.ok(stroke);
  assert.deepEqual([stroke.line, stroke.character, stroke.replaced], [4, 12, range]);
  assert.equal(seen(stroke.text), " return 1 ↵ return 2");
});

test("line ends of every kind are drawn alike", () => {
  assert.equal(seen(oneLine("a\r\nb\rc\nd")), " a ↵ b ↵ c ↵ d");
});

test("no space is left that the screen would drop", () => {
  assert.ok(!oneLine("a  b").includes(" "));
});

test("nothing is drawn for nothing, and little for very much", () => {
  assert.deepEqual(strokes([{ range, text: " \n " }]), []);
  assert.equal(oneLine("x".repeat(1000)).length, 401);
});
