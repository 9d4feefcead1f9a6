import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { countPackages, stepOf } from "../src/steps";

test("packages are counted as pip collects them", () => {
  assert.deepEqual(stepOf("Collecting torch==2.13.0 (from -r requirements.txt (line 3))"), { message: "torch", isNewPackage: true });
  assert.deepEqual(stepOf("  Downloading torch-2.13.0-cp311-none-linux.whl (912.1 MB)"), { message: "torch, 912.1 MB", isNewPackage: false });
  assert.deepEqual(stepOf("Installing collected packages: torch"), { message: "unpacking", isNewPackage: false });
  assert.equal(stepOf("  Using cached x.whl"), undefined);
});

test("every package in the requirements file has a hash", () => {
  const text = readFileSync("server/requirements.txt", "utf-8");
  const entries = text.split(/\n(?=[A-Za-z0-9])/);
  assert.equal(entries.length, countPackages(text));
  assert.ok(entries.length > 30);
  for (const entry of entries) assert.match(entry, /^[A-Za-z0-9._-]+==\S+[^]*--hash=sha256:[0-9a-f]{64}/);
  assert.ok(!entries.some((entry) => entry.startsWith("dg-lsp")), "dg-lsp itself comes from the wheel, not from an index");
});
