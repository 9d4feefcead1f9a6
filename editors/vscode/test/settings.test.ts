import assert from "node:assert/strict";
import { test } from "node:test";
import { commandLine, forServer, strings, withLanguage } from "../src/settings";

test("the server hears of its own settings only", () => {
  const section = { enable: true, client: { command: [] }, trace: { server: "off" }, engine: { model: "embedded" } };
  assert.deepEqual(forServer(section), { enable: true, engine: { model: "embedded" } });
});

test("what is no section is passed on", () => {
  assert.equal(forServer(null), null);
  assert.deepEqual(forServer([1]), [1]);
});

test("a language is listed once or not at all", () => {
  assert.deepEqual(withLanguage(["go"], "python", true), ["go", "python"]);
  assert.deepEqual(withLanguage(["go", "python"], "python", true), ["go", "python"]);
  assert.deepEqual(withLanguage(["go", "python"], "go", false), ["python"]);
});

test("what is no list of strings is one of none", () => {
  for (const value of ["python", null, undefined, 5, {}]) assert.deepEqual(strings(value), []);
  assert.deepEqual(strings(["go", 5]), ["go"]);
});

test("a command line is a list of strings or nothing, and what else it is not is said", () => {
  for (const value of [[], null, undefined]) assert.deepEqual(commandLine(value), []);
  assert.deepEqual(commandLine(["dg-lsp", "serve"]), ["dg-lsp", "serve"]);
  for (const value of ["dg-lsp serve", [1, 2], ["dg-lsp", 2], [""], 5]) assert.throws(() => commandLine(value), /dgLsp\.client\.command must be a list/);
});
