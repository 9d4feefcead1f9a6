import assert from "node:assert/strict";
import { test } from "node:test";
import { afterChange, type ShownSuggestion } from "../src/shownSuggestion";

const shown: ShownSuggestion = { text: "    return total / n", start: 100, present: 4, accepted: 0 };

test("accepted words are counted", () => {
  const once = afterChange(shown, { offset: 104, removed: 0, text: "return" });
  assert.deepEqual(once, { ...shown, present: 10, accepted: 6 });
  const twice = afterChange(once, { offset: 110, removed: 0, text: " total" });
  assert.deepEqual(twice, { ...shown, present: 16, accepted: 12 });
});

test("typed keys are not counted as accepted", () => {
  const typed = afterChange(shown, { offset: 104, removed: 0, text: "r" });
  assert.deepEqual(typed, { ...shown, present: 5 });
  assert.deepEqual(afterChange({ ...shown, text: "    f()", present: 5 }, { offset: 105, removed: 0, text: "(" })?.accepted, 0);
});

test("brackets that the editor closes are not counted as accepted", () => {
  assert.equal(afterChange({ ...shown, text: "    f() + 1", present: 5 }, { offset: 105, removed: 0, text: "()" })?.accepted, 0);
});

test("accepting all of it, or a change that does not fit, ends a suggestion", () => {
  assert.equal(afterChange(shown, { offset: 104, removed: 0, text: "return total / n" }), undefined);
  assert.equal(afterChange(shown, { offset: 104, removed: 0, text: "x" }), undefined);
  assert.equal(afterChange(shown, { offset: 7, removed: 0, text: "r" }), undefined);
  assert.equal(afterChange(shown, { offset: 104, removed: 1, text: "r" }), undefined);
});
