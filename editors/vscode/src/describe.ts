/** Describes the status in words, for the status bar and its tooltip. Pure; does not import the editor's API. */
import type { Status } from "./protocol";

/** The state of the server: starting, being installed, not installed, failed, or running, perhaps with suggestions snoozed or paused in the settings. */
export type Situation =
  | { kind: "starting" }
  | { kind: "installing" }
  | { kind: "missing" }
  | { kind: "broken"; message: string }
  | { kind: "snoozed"; until: string; status: Status }
  | { kind: "paused"; reason: string; status: Status }
  | { kind: "running"; status: Status };

export interface Description {
  /** An icon and the name for the status bar, always of the same width. */
  text: string;
  /** Sentences. */
  sentences: string[];
  level: "normal" | "warning" | "error";
}

/** Return what to show for a situation. */
export function describe(situation: Situation): Description {
  switch (situation.kind) {
    case "starting":
      return described("Working", ["The server is starting."]);
    case "installing":
      return described("Working", ["The server is being installed."]);
    case "missing":
      return { ...described("Problem", ["The program dg-lsp was not found.", "Click to install it or to set its path."]), level: "warning" };
    case "broken":
      return described("Problem", [situation.message]);
    case "snoozed":
      return described("Paused", [`Suggestions are snoozed until ${situation.until}.`, ...statusSentences(situation.status)]);
    case "paused":
      // A failure is reported first, because it also affects fills.
      if (situation.status.state === "failed") return describeStatus(situation.status);
      return described("Paused", [sentence(situation.reason), ...statusSentences(withoutPause(situation.status))]);
    case "running":
      return describeStatus(situation.status);
  }
}

/** Four words, each with an icon of the same width, because an item that changes its width moves all others. */
type Word = "Ready" | "Working" | "Paused" | "Problem";

const ICONS: Record<Word, string> = {
  Ready: "$(sparkle)",
  Working: "$(loading~spin)",
  Paused: "$(debug-pause)",
  Problem: "$(error)",
};

function described(word: Word, sentences: string[]): Description {
  return { text: `${ICONS[word]} dg-lsp`, sentences: [`${word}: ${sentences[0] ?? ""}`, ...sentences.slice(1)], level: word === "Problem" ? "error" : "normal" };
}

function describeStatus(status: Status): Description {
  return described(wordFor(status), statusSentences(status));
}

function statusSentences(status: Status): string[] {
  const loaded = status.state === "loading" ? ` (${Math.floor(status.fraction * 100)}%)` : "";
  const state = status.state === "failed" ? "has failed" : `is ${status.state}`;
  const sentences = [`The engine ${state}${loaded}, with model ${status.model}.`];
  if (status.message) sentences.push(sentence(status.message));
  if (status.latencyMs !== null) sentences.push(`The last answer took ${status.latencyMs} ms.`);
  // After a failure, the reason for no suggestion is the failure.
  if (status.suppressed && status.suppressed.message !== status.message) sentences.push(sentence(noSuggestion(status.suppressed.message)));
  return [...sentences, ...status.problems.map(sentence)];
}

/** Return the sentence, without a full stop, that says why there was no suggestion. */
export function noSuggestion(reason: string): string {
  return `No suggestion: ${reason}`;
}

// Reasons that the user chose in the settings. Every other reason concerns one place only.
const PAUSES = new Set(["off", "manual", "language"]);

/** Return a status without a reason that repeats why the suggestions are paused. */
function withoutPause(status: Status): Status {
  return status.suppressed && PAUSES.has(status.suppressed.code) ? { ...status, suppressed: null } : status;
}

function wordFor(status: Status): Word {
  if (status.state === "failed") return "Problem";
  if (status.busy || status.state === "starting" || status.state === "loading") return "Working";
  return status.suppressed && PAUSES.has(status.suppressed.code) ? "Paused" : "Ready";
}

/** Return the text as a sentence, with a capital letter and a full stop. */
export function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}
