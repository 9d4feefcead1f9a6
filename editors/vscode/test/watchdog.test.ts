import assert from "node:assert/strict";
import { mock, test, type TestContext } from "node:test";
import { Watchdog } from "../src/watchdog";

/** A watchdog with a clock that a test moves. */
function watched(context: TestContext): { watchdog: Watchdog; events: string[]; pass: (nTicks: number, each?: number) => void } {
  mock.timers.enable({ apis: ["setTimeout"] });
  context.after(() => {
    mock.timers.reset();
  });
  const events: string[] = [];
  let time = 0;
  const watchdog = new Watchdog({ tickMs: 10, now: () => time, ask: () => events.push("ask"), onFrozen: () => events.push("frozen") });
  const pass = (nTicks: number, each = 10) => {
    for (let n = 0; n < nTicks; n++) {
      time += each;
      mock.timers.tick(10);
    }
  };
  return { watchdog, events, pass };
}

const never = () => new Promise<never>(() => undefined);

test("the status is requested after ten ticks without an answer, and the server is frozen after twenty", (context) => {
  const { watchdog, events, pass } = watched(context);
  void watchdog.watch(never());
  pass(9);
  assert.deepEqual(events, []);
  pass(1);
  assert.deepEqual(events, ["ask"]);
  pass(9);
  assert.deepEqual(events, ["ask"]);
  pass(1);
  assert.deepEqual(events, ["ask", "frozen"]);
  pass(100);
  assert.deepEqual(events, ["ask", "frozen"]);
});

test("nothing is requested while no request is unanswered", async (context) => {
  const { watchdog, events, pass } = watched(context);
  await watchdog.watch(Promise.resolve());
  pass(100);
  assert.deepEqual(events, []);
});

test("an answer to any request shows that the server is alive, also an error", async (context) => {
  const { watchdog, events, pass } = watched(context);
  void watchdog.watch(never());
  pass(15);
  await watchdog.watch(Promise.resolve());
  pass(15);
  assert.deepEqual(events, ["ask", "ask"]);
  await assert.rejects(watchdog.watch(Promise.reject(new Error("cancelled"))));
  pass(19);
  assert.deepEqual(events, ["ask", "ask", "ask"]);
  pass(1);
  assert.equal(events.at(-1), "frozen");
});

test("a request counts from when it was sent, also if earlier ones waited long", async (context) => {
  const { watchdog, events, pass } = watched(context);
  let answer: (() => void) | undefined;
  const first = watchdog.watch(new Promise<void>((resolve) => (answer = resolve)));
  pass(9);
  answer?.();
  await first;
  pass(50);
  void watchdog.watch(never());
  pass(9);
  assert.deepEqual(events, []);
});

test("the time that the machine sleeps does not count, nor a clock that was set", (context) => {
  const { watchdog, events, pass } = watched(context);
  void watchdog.watch(never());
  pass(9);
  pass(50, 3_600_000);
  pass(50, -3_600_000);
  assert.deepEqual(events, []);
  pass(1);
  assert.deepEqual(events, ["ask"]);
  pass(1, 3_600_000);
  assert.deepEqual(events, ["ask"]);
  pass(10);
  assert.deepEqual(events, ["ask", "frozen"]);
});

test("a server that answers for long is told from one that freezes at its start", async (context) => {
  let time = 0;
  context.mock.method(performance, "now", () => time);
  const { watchdog } = watched(context);
  assert.equal(watchdog.answeredForMs, 0);
  time = 400_000;
  await watchdog.watch(Promise.resolve());
  time = 900_000;
  void watchdog.watch(never());
  assert.equal(watchdog.answeredForMs, 400_000);
});

test("no request is watched after the end", (context) => {
  const { watchdog, events, pass } = watched(context);
  void watchdog.watch(never());
  watchdog.dispose();
  pass(100);
  assert.deepEqual(events, []);
});
