import assert from "node:assert/strict";
import * as path from "node:path";
import { test } from "node:test";
import { absoluteEntries, childVariables, doctorArguments, locate, type SearchPlaces } from "../src/locate";

const PLACES: SearchPlaces = {
  setting: [],
  python: path.join("/envs", "a", "bin", "python"),
  environment: path.join("/private"),
  path: ["", path.join("/usr", "bin")],
};
const everywhere = [
  path.join("/envs", "a", "bin", "dg-lsp"),
  path.join("/private", "bin", "dg-lsp"),
  path.join("/usr", "bin", "dg-lsp"),
];

function found(places: Partial<SearchPlaces>, files: readonly string[]) {
  return locate({ ...PLACES, ...places }, (file) => files.includes(file));
}

test("the selected environment comes first, then the private one, then PATH", () => {
  everywhere.forEach((command, idx) => {
    const source = (["python", "private", "path"] as const)[idx];
    assert.deepEqual(found({}, everywhere.slice(idx)), { command, args: ["serve"], source });
  });
});

test("the command in the settings is used without a search", () => {
  assert.deepEqual(found({ setting: ["/x/dg-lsp"] }, []), { command: "/x/dg-lsp", args: ["serve"], source: "settings" });
  assert.deepEqual(found({ setting: ["uvx", "dg-lsp", "serve"] }, [])?.args, ["dg-lsp", "serve"]);
});

test("without a program the result is undefined", () => {
  assert.equal(found({ python: undefined }, []), undefined);
});

test("a program in the workspace is not run through a relative entry of PATH", () => {
  const entries = ["", ".", "bin", "./bin", "../bin", "~/bin"];
  const everything = locate({ ...PLACES, python: undefined, path: entries }, () => true);
  assert.equal(everything?.source, "private");
  assert.equal(locate({ ...PLACES, python: undefined, path: entries }, (file) => !file.startsWith("/private")), undefined);
  assert.equal(locate({ ...PLACES, python: path.join("bin", "python"), path: [] }, (file) => !file.startsWith("/private")), undefined);
});

test("only absolute entries of PATH are searched", () => {
  assert.deepEqual(absoluteEntries(["/a", "", ".", "b", "/c"].join(path.delimiter)), ["/a", "/c"]);
});

test("what is started searches nothing in the current folder or in an untrusted one", () => {
  const PATH = ["/usr/bin", ".", "", "/open/bin", "/open", "/opened", "/open/../usr/sbin"].join(path.delimiter);
  const { PYTHONPATH, ...rest } = childVariables({ PATH, PYTHONPATH: "src:/open/src:/lib", HOME: "/h" }, ["/open"]);
  assert.equal(PYTHONPATH, "/lib");
  assert.deepEqual(rest, { PATH: ["/usr/bin", "/opened", "/open/../usr/sbin"].join(path.delimiter), HOME: "/h", PYTHONSAFEPATH: "1" });
});

test("doctor runs with the same program as the server", () => {
  assert.deepEqual(doctorArguments({ command: "/x/dg-lsp", args: ["serve"], source: "path" }), ["doctor"]);
  assert.deepEqual(doctorArguments({ command: "python", args: ["-m", "dg_lsp", "serve"], source: "settings" }), ["-m", "dg_lsp", "doctor"]);
  assert.equal(doctorArguments({ command: "ssh", args: ["host", "dg-lsp serve"], source: "settings" }), undefined);
});
