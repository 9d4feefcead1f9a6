/** How things are, in words: what the status bar shows and what its tooltip says. Pure; knows nothing of the editor. */
import type { Status } from "./protocol";

/** What there is to say of a client whose server has not spoken: it is being started, it is not there, or it has failed. */
export type Situation =
  | { kind: "starting" }
  | { kind: "missing" }
  | { kind: "broken"; message: string }
  | { kind: "running"; status: Status };

export interface Description {
  /** A few characters with icons, for the status bar. */
  text: string;
  /** Sentences. */
  sentences: string[];
  level: "normal" | "warning" | "error";
}

/** Return what to show for a situation. */
export function describe(situation: Situation): Description {
  switch (situation.kind) {
    case "starting":
      return { text: "$(loading~spin) dg-lsp", sentences: ["The server is starting."], level: "normal" };
    case "missing":
      return {
        text: "$(warning) dg-lsp",
        sentences: ["The program dg-lsp was not found.", "Click to install it or to say where it is."],
        level: "warning",
      };
    case "broken":
      return { text: "$(error) dg-lsp", sentences: [situation.message], level: "error" };
    case "running":
      return describeStatus(situation.status);
  }
}

function describeStatus(status: Status): Description {
  const sentences = [`The engine is ${status.state}, with model ${status.model}.`];
  if (status.message) sentences.push(sentence(status.message));
  if (status.latencyMs !== null) sentences.push(`The last answer took ${status.latencyMs} ms.`);
  if (status.suppressed) sentences.push(sentence(`no suggestion: ${status.suppressed.message}`));
  return { text: `${icon(status)} dg-lsp${detail(status)}`, sentences, level: status.state === "failed" ? "error" : "normal" };
}

function icon(status: Status): string {
  if (status.state === "failed") return "$(error)";
  if (status.busy || status.state === "starting" || status.state === "loading") return "$(loading~spin)";
  if (status.suppressed?.code === "manual" || status.suppressed?.code === "language") return "$(debug-pause)";
  if (status.suppressed) return "$(circle-slash)";
  return "$(sparkle)";
}

function detail(status: Status): string {
  if (status.state === "loading") return ` ${Math.floor(status.fraction * 100)}%`;
  if (status.state === "ready" && !status.busy && !status.suppressed && status.latencyMs !== null) return ` ${status.latencyMs} ms`;
  return "";
}

/** Return the text as a sentence: with a capital first and a full stop last. */
export function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}
