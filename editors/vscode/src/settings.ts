/** Which of the settings are the server's, and which are this client's own. Pure. */

/** Groups of settings that only this client reads; the server would say that it does not know them. */
const OWN = new Set(["client", "trace"]);

/** Return the settings of our section as the server is to see them. */
export function forServer(section: unknown): unknown {
  if (typeof section !== "object" || section === null || Array.isArray(section)) return section;
  return Object.fromEntries(Object.entries(section).filter(([name]) => !OWN.has(name)));
}

/** Return the strings of a setting that is a list of them; users write other things too. */
export function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((each) => typeof each === "string") : [];
}

/** Return the command line that a setting names, empty for none; raise an error that says what is wrong with it. */
export function commandLine(value: unknown): string[] {
  const parts = strings(value);
  if (value === null || value === undefined || (Array.isArray(value) && value.length === 0)) return [];
  if (!Array.isArray(value) || parts.length < value.length || !parts[0]) {
    throw new Error('the setting dgLsp.client.command must be a list of strings, such as ["/opt/dg/bin/dg-lsp", "serve"]');
  }
  return parts;
}

/** Return the languages with one more, or with one less. */
export function withLanguage(languages: readonly string[], language: string, disabled: boolean): string[] {
  const others = languages.filter((each) => each !== language);
  return disabled ? [...others, language] : others;
}
