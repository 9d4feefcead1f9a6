/** Follows a shown suggestion through the changes of its document. Pure; does not import the editor's API. */

/** A suggestion on the screen. Lengths are in UTF-16 units. */
export interface ShownSuggestion {
  text: string;
  /** The offset where its text begins. A part of the text may already be in the document. */
  start: number;
  /** The length of the part that is in the document. */
  present: number;
  /** The length that was accepted in parts; the rest was typed. */
  accepted: number;
}

export interface Change {
  offset: number;
  removed: number;
  text: string;
}

/**
 * Return the suggestion after a change; undefined if the change accepted all of it, or does not fit it.
 *
 * A change of several characters counts as an accepted part, and a change of one character as typed.
 */
export function afterChange(shown: ShownSuggestion, change: Change): ShownSuggestion | undefined {
  const rest = shown.text.slice(shown.present);
  const isNext = change.offset === shown.start + shown.present && change.removed === 0 && rest.startsWith(change.text);
  if (!isNext || change.text.length === rest.length) return undefined;
  const isPart = change.text.length > 1 && /[\p{L}\p{N}_]/u.test(change.text);
  const present = shown.present + change.text.length;
  return { ...shown, present, accepted: shown.accepted + (isPart ? change.text.length : 0) };
}
