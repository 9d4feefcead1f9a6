import assert from "node:assert/strict";
import { test } from "node:test";
import { needsRequest, typedChange } from "../src/typed";

const typed = typedChange(7, { offset: 10, removed: 0, text: "()" });

test("a change without an answer needs a request where the cursor still is", () => {
  assert.ok(needsRequest(typed, 7, [11]));
  assert.ok(needsRequest(typed, 7, [12]));
});

test("a change needs no request once it was answered, or the cursor or the text has changed", () => {
  assert.ok(!needsRequest({ ...typed, isAsked: true }, 7, [11]));
  assert.ok(!needsRequest(typed, 8, [11]));
  assert.ok(!needsRequest(typed, 7, [13]));
  assert.ok(!needsRequest(typed, 7, [9]));
  assert.ok(!needsRequest(typed, 7, [11, 12]));
  assert.ok(!needsRequest(typed, 7, []));
});
