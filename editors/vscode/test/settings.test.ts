import assert from "node:assert/strict";
import { test } from "node:test";
import { commandLine, forServer, pauseReason, strings, withLanguage } from "../src/settings";

test("only the server's settings are sent to the server", () => {
  const section = { enable: true, client: { command: [] }, trace: { server: "off" }, engine: { model: "embedded" } };
  assert.deepEqual(forServer(section), { enable: true, engine: { model: "embedded" } });
});

test("a value that is not an object is unchanged", () => {
  assert.equal(forServer(null), null);
  assert.deepEqual(forServer([1]), [1]);
});

test("a language is listed once or not at all", () => {
  assert.deepEqual(withLanguage(["go"], "python", true), ["go", "python"]);
  assert.deepEqual(withLanguage(["go", "python"], "python", true), ["go", "python"]);
  assert.deepEqual(withLanguage(["go", "python"], "go", false), ["python"]);
});

test("a value that is not a list of strings gives an empty list", () => {
  for (const value of ["python", null, undefined, 5, {}]) assert.deepEqual(strings(value), []);
  assert.deepEqual(strings(["go", 5]), ["go"]);
});

test("a command line that is not a list of strings is an error", () => {
  for (const value of [[], null, undefined]) assert.deepEqual(commandLine(value), []);
  assert.deepEqual(commandLine(["dg-lsp", "serve"]), ["dg-lsp", "serve"]);
  for (const value of ["dg-lsp serve", [1, 2], ["dg-lsp", 2], [""], 5]) assert.throws(() => commandLine(value), /dgLsp\.client\.command must be a list/);
});

test("the settings say why nothing is suggested while typing", () => {
  const settings = { enable: true, trigger: "auto", disabledLanguages: ["go"] };
  assert.equal(pauseReason(settings, "python"), undefined);
  assert.equal(pauseReason(settings, undefined), undefined);
  assert.equal(pauseReason(settings, "go"), "suggestions are paused for go");
  assert.match(pauseReason({ ...settings, trigger: "manual" }, "go") ?? "", /only on request/);
  assert.match(pauseReason({ ...settings, enable: false }, "go") ?? "", /dgLsp\.enable/);
  assert.equal(pauseReason({ ...settings, disabledLanguages: "python" }, "python"), undefined);
});
