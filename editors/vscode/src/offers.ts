/** What `dg-lsp setup --json` says. Pure. */

export interface Offer {
  model: string;
  title: string;
  where: string;
  cost: string;
  quality: string;
  ready: boolean;
  recommended: boolean;
  commands: string[];
}

export interface Setup {
  version: number;
  file: string;
  model: string;
  offers: Offer[];
  written?: string;
  overruled?: string;
  trial?: { diff: string; confidence: string; ms: number; problem: string } | null;
}

/** The version of the object that this client understands. */
export const VERSION = 1;

/** Return what the program said; raise an error that is a sentence for something else. */
export function readOffers(text: string): Setup {
  const stated = JSON.parse(text) as Partial<Setup>;
  if (stated.version !== VERSION || !Array.isArray(stated.offers) || typeof stated.model !== "string") {
    throw new Error("dg-lsp setup speaks another version than this extension; update one of them");
  }
  return stated as Setup;
}

/** Return how an offer reads in a list. */
export function describeOffer(offer: Offer, current: string): { label: string; description: string; detail: string } {
  const icon = offer.model === current ? "$(check) " : offer.ready ? "" : "$(terminal) ";
  const state = offer.model === current ? "used now" : offer.recommended ? "recommended" : offer.ready ? "" : "after a few commands";
  return { label: `${icon}${offer.title}`, description: state, detail: `${offer.where}; ${offer.cost}; ${offer.quality}` };
}
