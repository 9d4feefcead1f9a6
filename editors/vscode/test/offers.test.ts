import assert from "node:assert/strict";
import { test } from "node:test";
import { describeOffer, readOffers, terminalCommands, type Offer } from "../src/offers";

const OFFER: Offer = {
  model: "embedded",
  title: "the small model",
  where: "on this machine",
  cost: "500 MB",
  quality: "not measured",
  ready: true,
  recommended: true,
  commands: [],
};

test("an offer shows where code is sent, its cost and its quality", () => {
  assert.deepEqual(describeOffer(OFFER, "other"), {
    label: "the small model",
    description: "recommended",
    detail: "on this machine; 500 MB; not measured",
  });
  assert.equal(describeOffer(OFFER, "embedded").label, "$(check) the small model");
  assert.equal(describeOffer({ ...OFFER, model: "auto" }, "embedded").label, "$(check) the small model");
  assert.equal(describeOffer({ ...OFFER, ready: false, recommended: false }, "x").description, "after a few commands");
});

test("an offer's line ends with its quality, which a list would cut off after a long command", () => {
  const quality = "not measured; to measure it: dg-lsp calibrate --model 'embedded'";
  assert.equal(describeOffer({ ...OFFER, quality }, "other").detail, "on this machine; 500 MB; not measured");
});

test("commands for a terminal find the program of the server, and contain no instruction to the user", () => {
  const commands = ["install Ollama (ollama.com)", "ollama pull a:b", "dg-lsp setup --yes 'fim:ollama#a:b'"];
  assert.deepEqual(terminalCommands(commands, ["/home/a b/bin/dg-lsp"]), [
    "# install Ollama (ollama.com)",
    "ollama pull a:b",
    "'/home/a b/bin/dg-lsp' setup --yes 'fim:ollama#a:b'",
  ]);
  assert.deepEqual(terminalCommands(["dg-lsp engine pull x"], ["/usr/bin/python3", "-m", "dg_lsp"]), ["/usr/bin/python3 -m dg_lsp engine pull x"]);
});

test("output of another version is refused", () => {
  assert.equal(readOffers(JSON.stringify({ version: 1, model: "embedded", file: "f", offers: [OFFER] })).offers.length, 1);
  assert.throws(() => readOffers(JSON.stringify({ version: 2, model: "embedded", offers: [] })), /another version/);
});
