import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { countPackages } from "../src/steps";
import { hasCpuTorch, hasUselessCuda, withoutTorch } from "../src/torch";

test("only Linux without an NVIDIA GPU has no use for CUDA", () => {
  const nothing = () => false;
  assert.equal(hasUselessCuda("linux", nothing), true);
  assert.equal(hasUselessCuda("linux", (path) => path === "/dev/nvidiactl"), false);
  assert.equal(hasUselessCuda("linux", (path) => path === "/dev/dxg"), false);
  assert.equal(hasUselessCuda("darwin", nothing), false);
  assert.equal(hasUselessCuda("win32", nothing), false);
});

test("the requirements for a CPU have every package and hash but torch's and CUDA's", () => {
  const all = readFileSync("server/requirements.txt", "utf-8");
  const others = withoutTorch(all);
  const names = (text: string) => [...text.matchAll(/^([a-z0-9-]+)==/gm)].map((match) => match[1] ?? "");
  const removed = names(all).filter((name) => !names(others).includes(name));
  assert.ok(["torch", "triton", "nvidia-cublas", "cuda-toolkit"].every((name) => removed.includes(name)));
  assert.ok(removed.every((name) => /^(torch|triton|nvidia-.+|cuda-.+)$/.test(name)), removed.join());
  assert.equal(countPackages(others), countPackages(all) - removed.length);
  for (const entry of others.split(/\n(?=[A-Za-z0-9])/)) assert.match(entry, /--hash=sha256:[0-9a-f]{64}\s*$/);
});

test("torch's CPU build has the version of the other requirements, and other hashes", () => {
  const version = (name: string) => /^torch==([^\s+\\]+)/m.exec(readFileSync(name, "utf-8"))?.[1];
  const hashes = (name: string) => readFileSync(name, "utf-8").match(/sha256:[0-9a-f]{64}/g) ?? [];
  assert.equal(version("server/requirements-cpu.txt"), version("server/requirements.txt"));
  const cpu = hashes("server/requirements-cpu.txt");
  // A wheel for each of CPython 3.11 to 3.14, on x86_64 and aarch64.
  assert.equal(new Set(cpu).size, 8);
  const all = new Set(hashes("server/requirements.txt"));
  assert.deepEqual(cpu.filter((hash) => all.has(hash)), []);
});

test("requirements without torch stay the same", () => {
  assert.equal(withoutTorch("typer==0.29.2\n"), "typer==0.29.2\n");
});

test("an installed build of torch is recognised by its version", () => {
  assert.equal(hasCpuTorch(["torch", "torch-2.13.0+cpu.dist-info", "torchgen"]), true);
  assert.equal(hasCpuTorch(["torch-2.13.0.dist-info", "torch_geometric-1.0+cpu.dist-info"]), false);
  assert.equal(hasCpuTorch(["numpy-2.4.0.dist-info"]), undefined);
});
