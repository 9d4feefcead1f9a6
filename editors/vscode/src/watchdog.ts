/**
 * Finds out whether the server still answers. Knows nothing of the editor or of the process.
 *
 * A live server returns its status at once, whatever the engine does. So if a request stays unanswered for some seconds, the
 * status is requested. If that stays unanswered too, the server is frozen.
 */

/** Ticks without an answer after which the status is requested, and after which the server is frozen. */
const ASK_AFTER = 10;
const FROZEN_AFTER = 20;

export interface WatchdogOptions {
  /** The time between two looks at the unanswered requests. */
  tickMs: number;
  /** Returns the time of day in milliseconds, which goes on while the machine sleeps. */
  now: () => number;
  /** Requests the status. */
  ask: () => void;
  /** Called once, when the server is frozen. */
  onFrozen: () => void;
}

/** Watches the requests to one process. */
export class Watchdog {
  private nUnanswered = 0;
  private silentTicks = 0;
  private timer: NodeJS.Timeout | undefined;
  private readonly startedAt = performance.now();
  private answeredAt = this.startedAt;

  constructor(private readonly options: WatchdogOptions) {}

  dispose(): void {
    clearTimeout(this.timer);
  }

  /** Milliseconds from the start to the last answer. */
  get answeredForMs(): number {
    return this.answeredAt - this.startedAt;
  }

  /** Return the answer to a request. Any answer counts, also an error; a live server answers cancelled requests too. */
  async watch<T>(answer: Promise<T>): Promise<T> {
    this.nUnanswered++;
    if (this.nUnanswered === 1) this.tick();
    try {
      return await answer;
    } finally {
      this.nUnanswered--;
      this.silentTicks = 0;
      this.answeredAt = performance.now();
      if (this.nUnanswered === 0) clearTimeout(this.timer);
    }
  }

  private tick(): void {
    const { tickMs, now, ask, onFrozen } = this.options;
    const due = now() + tickMs;
    this.timer = setTimeout(() => {
      // A late tick does not count: the machine slept or this process was blocked, and an answer may wait to be read.
      const isLate = Math.abs(now() - due) > tickMs;
      if (!isLate) this.silentTicks++;
      if (this.silentTicks >= FROZEN_AFTER) {
        onFrozen();
        return;
      }
      this.tick();
      if (!isLate && this.silentTicks === ASK_AFTER) ask();
    }, tickMs);
  }
}
