/** Suppresses unprompted suggestions for some time; explicit requests still work. */
import * as vscode from "vscode";

const MINUTES = [5, 15, 60];

export class Snooze implements vscode.Disposable {
  private end = 0;
  private timer: NodeJS.Timeout | undefined;
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChange = this.changed.event;

  dispose(): void {
    clearTimeout(this.timer);
    this.changed.dispose();
  }

  /** The time of day when the snooze ends; undefined without one. */
  get until(): string | undefined {
    if (Date.now() >= this.end) return undefined;
    return new Date(this.end).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  }

  /** Ask for the duration and start a snooze, or end a running one. */
  async toggle(): Promise<void> {
    if (this.until !== undefined) {
      this.set(0);
      return;
    }
    const items = MINUTES.map((minutes) => ({ label: `${minutes} minutes`, minutes }));
    const picked = await vscode.window.showQuickPick(items, { title: "dg-lsp: snooze suggestions for" });
    if (picked) this.set(picked.minutes);
  }

  private set(minutes: number): void {
    clearTimeout(this.timer);
    this.end = Date.now() + minutes * 60_000;
    if (minutes > 0) {
      this.timer = setTimeout(() => {
        this.changed.fire();
      }, minutes * 60_000);
    }
    this.changed.fire();
  }
}
