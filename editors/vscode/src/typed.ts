/** Decides whether a typed change still needs a request for a suggestion. Pure; does not import the editor's API. */

/** One change of a document. Lengths are in UTF-16 units. */
export interface Change {
  offset: number;
  removed: number;
  text: string;
}

/** The user's last change of a document. Offsets are in UTF-16 units. */
export interface Typed {
  /** The document's version after the change. */
  version: number;
  start: number;
  end: number;
  /** Whether a request for this version was answered, or waits for an answer. */
  isAsked: boolean;
}

/** Return the record of a change that has led to this version of the document. */
export function typedChange(version: number, change: Change): Typed {
  return { version, start: change.offset, end: change.offset + change.text.length, isAsked: false };
}

/** Return whether the cursors are still where the change left them, and no request was answered. */
export function needsRequest(typed: Typed, version: number, cursors: number[]): boolean {
  const [cursor] = cursors;
  // Within the change, not at its end: the editor may have inserted a closing bracket behind the cursor.
  const isThere = cursors.length === 1 && cursor !== undefined && typed.start <= cursor && cursor <= typed.end;
  return !typed.isAsked && typed.version === version && isThere;
}
