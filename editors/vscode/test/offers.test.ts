import assert from "node:assert/strict";
import { test } from "node:test";
import { describeOffer, readOffers, type Offer } from "../src/offers";

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
  assert.equal(describeOffer({ ...OFFER, ready: false, recommended: false }, "x").description, "after a few commands");
});

test("output of another version is refused", () => {
  assert.equal(readOffers(JSON.stringify({ version: 1, model: "embedded", file: "f", offers: [OFFER] })).offers.length, 1);
  assert.throws(() => readOffers(JSON.stringify({ version: 2, model: "embedded", offers: [] })), /another version/);
});
