import assert from "node:assert/strict";
import { test } from "node:test";
import { follow, type Shown } from "../src/uptake";

const shown: Shown = { text: "    return total / n", start: 100, present: 4, accepted: 0 };

test("a word is accepted, and then another", () => {
  const once = follow(shown, { offset: 104, removed: 0, text: "return" });
  assert.deepEqual(once, { ...shown, present: 10, accepted: 6 });
  const twice = follow(once, { offset: 110, removed: 0, text: " total" });
  assert.deepEqual(twice, { ...shown, present: 16, accepted: 12 });
});

test("keys are typed, and count for nothing", () => {
  const typed = follow(shown, { offset: 104, removed: 0, text: "r" });
  assert.deepEqual(typed, { ...shown, present: 5 });
  assert.deepEqual(follow({ ...shown, text: "    f()", present: 5 }, { offset: 105, removed: 0, text: "(" })?.accepted, 0);
});

test("a pair of brackets that the editor closes is no word", () => {
  assert.equal(follow({ ...shown, text: "    f() + 1", present: 5 }, { offset: 105, removed: 0, text: "()" })?.accepted, 0);
});

test("what is accepted as a whole, what does not fit and what stands elsewhere is followed no longer", () => {
  assert.equal(follow(shown, { offset: 104, removed: 0, text: "return total / n" }), undefined);
  assert.equal(follow(shown, { offset: 104, removed: 0, text: "x" }), undefined);
  assert.equal(follow(shown, { offset: 7, removed: 0, text: "r" }), undefined);
  assert.equal(follow(shown, { offset: 104, removed: 1, text: "r" }), undefined);
});
