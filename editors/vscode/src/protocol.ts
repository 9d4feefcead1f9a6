/** The server's own messages. Mirrors dg_lsp/server/methods.py; tests/test_mirror.py compares the two. */
import { NotificationType, RequestType, type Command, type Position, type Range, type VersionedTextDocumentIdentifier } from "vscode-languageclient";

/** The version of the messages that this client supports. */
export const VERSION = 1;

export type State = "off" | "starting" | "loading" | "ready" | "failed";

export interface Status {
  version: number;
  state: State;
  model: string;
  message: string;
  fraction: number;
  latencyMs: number | null;
  suppressed: { code: string; message: string } | null;
  busy: boolean;
  problems: string[];
  /** The server asks VS Code's users by a message, so `isNew` is never true here. */
  offer: { model: string; size: string; gives: string; isNew: boolean } | null;
  /** Show an unprompted suggestion only when the user reveals it. */
  held: boolean;
  /** When to ask for the next edit. */
  nextEdit: "off" | "pause" | "manual";
}

export interface DraftHole {
  range: Range;
  text: string;
}

export interface Draft {
  version: number;
  token: string;
  textDocument: { uri: string; version: number | null };
  holes: DraftHole[];
  step: number;
  done: boolean;
}

/** The version of a document for which an answer came after its request had ended. */
export interface Refresh {
  version: number;
  textDocument: { uri: string; version: number | null };
}

export interface NextEditParams {
  textDocument: VersionedTextDocumentIdentifier;
  position: Position;
  /** 1: the user asked. 2: the client asks by itself. */
  context: { triggerKind: 1 | 2 };
}

/** A change of whole lines that the user will probably make next, and what to run when it is accepted. */
export interface NextEdit {
  textDocument: VersionedTextDocumentIdentifier;
  range: Range;
  text: string;
  command: Command;
}

export type What = "body" | "hole" | "all" | "regenerate" | "repair" | "docstring";

/** The parameters of `dgLsp.fill`, which are also the `data` of a code action. */
export interface FillParams {
  do: What;
  textDocument: Omit<VersionedTextDocumentIdentifier, "version"> & { version: number | null };
  range: Range;
  instruction?: string;
}

/** A fill that was applied: its range in the new text, its text, and the model's confidence in words. */
export interface FilledPart {
  range: Range;
  text: string;
  confidence: string;
}

/** The answer to `dgLsp.fill`. */
export interface FillAnswer {
  applied: boolean;
  note?: string;
  nHoles?: number;
  fills?: FilledPart[];
}

export const statusChanged = new NotificationType<Status>("dgLsp/status");
export const draftChanged = new NotificationType<Draft>("dgLsp/draft");
export const answerCame = new NotificationType<Refresh>("dgLsp/refresh");

export const nextEditAsked = new RequestType<NextEditParams, { edits: NextEdit[] }, void>("textDocument/copilotInlineEdit");

/** The server's commands, for `workspace/executeCommand`. */
export const serverCommands = {
  fill: "dgLsp.fill",
  status: "dgLsp.status",
  restartEngine: "dgLsp.restartEngine",
  nextEdit: "dgLsp.nextEdit",
  pull: "dgLsp.pull",
} as const;
