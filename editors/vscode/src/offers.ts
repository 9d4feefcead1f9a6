/** Reads the output of `dg-lsp setup --json`. Pure. */

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

/** The version of the output that this client supports. */
export const VERSION = 1;

/** Return the parsed output; throw an error whose message is a sentence if it has another format. */
export function readOffers(text: string): Setup {
  const setup = JSON.parse(text) as Partial<Setup>;
  if (setup.version !== VERSION || !Array.isArray(setup.offers) || typeof setup.model !== "string") {
    throw new Error("dg-lsp setup has another version than this extension; update one of them");
  }
  return setup as Setup;
}

/** Return the entry of an offer in a list. */
export function describeOffer(offer: Offer, current: string): { label: string; description: string; detail: string } {
  // The server resolves "auto", which is offered while no laptop model is there.
  const isUsed = offer.model === current || (offer.model === "auto" && current === "embedded");
  const icon = isUsed ? "$(check) " : offer.ready ? "" : "$(terminal) ";
  const state = isUsed ? "used now" : offer.recommended ? "recommended" : offer.ready ? "" : "after a few commands";
  // The list cuts long lines, so how to measure a model is left out.
  const [quality = ""] = offer.quality.split("; ", 1);
  return { label: `${icon}${offer.title}`, description: state, detail: `${offer.where}; ${offer.cost}; ${quality}` };
}

/** Return an offer's commands for a terminal, in which `dg-lsp` may not be on PATH: `program` is the command line that runs it. */
export function terminalCommands(commands: readonly string[], program: readonly string[]): string[] {
  return commands.map((command) => {
    // An instruction to the user is not a command.
    if (command.startsWith("install ")) return `# ${command}`;
    return command.replace(/^dg-lsp(?= )/, () => program.map(quoted).join(" "));
  });
}

/** Return a word as a POSIX shell reads it. */
function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
