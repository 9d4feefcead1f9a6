/** Follows a shown suggestion through the changes of its document. Pure; does not import the editor's API. */

/** A suggestion that is on the screen. Lengths are in UTF-16 units. */
export interface Shown {
  text: string;
  /** The offset where its text begins, some of which may stand there already. */
  start: number;
  /** How much of its text stands in the document. */
  present: number;
  /** How much of that was accepted in parts; the rest was typed. */
  accepted: number;
}

export interface Change {
  offset: number;
  removed: number;
  text: string;
}

/**
 * Return the suggestion after a change, undefined when the change made an end of it: accepted as a whole, or left behind.
 *
 * A key writes one character, and an accepted part a word or a line; a part of a single character is taken for a key.
 */
export function follow(shown: Shown, change: Change): Shown | undefined {
  const rest = shown.text.slice(shown.present);
  const isNext = change.offset === shown.start + shown.present && change.removed === 0 && rest.startsWith(change.text);
  if (!isNext || change.text.length === rest.length) return undefined;
  const isPart = change.text.length > 1 && /[\p{L}\p{N}_]/u.test(change.text);
  const present = shown.present + change.text.length;
  return { ...shown, present, accepted: shown.accepted + (isPart ? change.text.length : 0) };
}
