import assert from "node:assert/strict";
import { test } from "node:test";
import { describe, sentence } from "../src/describe";
import type { Status } from "../src/protocol";

const READY: Status = {
  version: 1,
  state: "ready",
  model: "embedded",
  message: "",
  fraction: 1,
  latencyMs: 120,
  suppressed: null,
  busy: false,
  problems: [],
  offer: null, held: false, nextEdit: "off",
};

function text(changes: Partial<Status>): string {
  return describe({ kind: "running", status: { ...READY, ...changes } }).text;
}

test("the status bar shows an icon for each state", () => {
  assert.equal(text({}), "$(sparkle) dg-lsp");
  assert.equal(text({ latencyMs: null }), "$(sparkle) dg-lsp");
  assert.equal(text({ state: "loading", fraction: 0.459 }), "$(loading~spin) dg-lsp");
  assert.equal(text({ busy: true }), "$(loading~spin) dg-lsp");
  assert.equal(text({ state: "failed" }), "$(error) dg-lsp");
  assert.equal(text({ suppressed: { code: "manual", message: "suggestions come only on request, as `completion.trigger` says" } }), "$(debug-pause) dg-lsp");
  assert.equal(text({ suppressed: { code: "comment", message: "the cursor is in a comment" } }), "$(sparkle) dg-lsp");
});

test("the tooltip says why nothing was suggested", () => {
  const status = { ...READY, suppressed: { code: "ignored", message: "this file may hold secrets" } };
  assert.deepEqual(describe({ kind: "running", status }).sentences, [
    "Ready: The engine is ready, with model embedded.",
    "The last answer took 120 ms.",
    "No suggestion: this file may hold secrets.",
  ]);
});

test("the first word is Ready, Working, Paused or Problem", () => {
  const word = (changes: Partial<Status>) => describe({ kind: "running", status: { ...READY, ...changes } }).sentences[0]?.split(":")[0];
  assert.equal(word({}), "Ready");
  assert.equal(word({ suppressed: { code: "unsure", message: "the best answer is not sure" } }), "Ready");
  assert.equal(word({ state: "loading" }), "Working");
  assert.equal(word({ busy: true }), "Working");
  assert.equal(word({ suppressed: { code: "language", message: "off for go" } }), "Paused");
  assert.equal(word({ state: "failed" }), "Problem");
  assert.deepEqual(describe({ kind: "snoozed", until: "14:05", status: READY }).sentences[0], "Paused: Suggestions are snoozed until 14:05.");
});

test("a pause in the settings is shown with its reason, once", () => {
  const status = { ...READY, suppressed: { code: "manual", message: "suggestions come only on request, as `completion.trigger` says" } };
  const paused = describe({ kind: "paused", reason: "suggestions come only on request", status });
  assert.equal(paused.text, "$(debug-pause) dg-lsp");
  assert.deepEqual(paused.sentences, [
    "Paused: Suggestions come only on request.",
    "The engine is ready, with model embedded.",
    "The last answer took 120 ms.",
  ]);
  assert.match(describe({ kind: "paused", reason: "off", status: { ...READY, state: "failed" } }).sentences[0] ?? "", /^Problem: /);
});

test("a failure is described once", () => {
  const message = "127.0.0.1:11434 can't be reached";
  const status: Status = { ...READY, state: "failed", message, latencyMs: null, suppressed: { code: "failed", message } };
  assert.deepEqual(describe({ kind: "running", status }).sentences, ["Problem: The engine has failed, with model embedded.", `${message}.`]);
});

test("an installation is shown as work, not as a problem", () => {
  assert.deepEqual(describe({ kind: "installing" }), { text: "$(loading~spin) dg-lsp", sentences: ["Working: The server is being installed."], level: "normal" });
});

test("a problem has a warning or error colour", () => {
  assert.equal(describe({ kind: "running", status: { ...READY, state: "failed", message: "no memory" } }).level, "error");
  assert.equal(describe({ kind: "missing" }).level, "warning");
  assert.equal(describe({ kind: "broken", message: "It ended." }).level, "error");
  assert.equal(describe({ kind: "starting" }).level, "normal");
});

test("a sentence gets a capital letter and one full stop", () => {
  assert.equal(sentence("it works"), "It works.");
  assert.equal(sentence("Really?"), "Really?");
});
