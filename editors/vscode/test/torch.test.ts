import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { countPackages } from "../src/steps";
import { cpuRequirements, hasCpuTorch, hasUselessCuda, indexProblem } from "../src/torch";

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
  const cpu = cpuRequirements(all);
  assert.ok(cpu);
  assert.match(cpu.torch, /^torch==\d+\.\d+\.\d+\+cpu$/);
  const names = (text: string) => [...text.matchAll(/^([a-z0-9-]+)==/gm)].map((match) => match[1] ?? "");
  const removed = names(all).filter((name) => !names(cpu.others).includes(name));
  assert.ok(["torch", "triton", "nvidia-cublas", "cuda-toolkit"].every((name) => removed.includes(name)));
  assert.ok(removed.every((name) => /^(torch|triton|nvidia-.+|cuda-.+)$/.test(name)), removed.join());
  assert.equal(countPackages(cpu.others), countPackages(all) - removed.length);
  for (const entry of cpu.others.split(/\n(?=[A-Za-z0-9])/)) assert.match(entry, /--hash=sha256:[0-9a-f]{64}\s*$/);
});

test("a requirements file without torch has no CPU build", () => {
  assert.equal(cpuRequirements("typer==0.29.2\n"), undefined);
});

test("an installed build of torch is recognised by its version", () => {
  assert.equal(hasCpuTorch(["torch", "torch-2.13.0+cpu.dist-info", "torchgen"]), true);
  assert.equal(hasCpuTorch(["torch-2.13.0.dist-info", "torch_geometric-1.0+cpu.dist-info"]), false);
  assert.equal(hasCpuTorch(["numpy-2.4.0.dist-info"]), undefined);
});

test("the address of an index must be an https address", () => {
  assert.equal(indexProblem(" https://example.org/cpu "), "");
  assert.match(indexProblem("http://example.org/cpu"), /begins with https/);
  assert.match(indexProblem("cpu"), /begins with https/);
  assert.match(indexProblem(""), /pytorch\.org shows/);
});
