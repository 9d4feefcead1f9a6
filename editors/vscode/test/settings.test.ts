import assert from "node:assert/strict";
import { test } from "node:test";
import { forServer, withLanguage } from "../src/settings";

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
