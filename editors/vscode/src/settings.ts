/** Which of the settings are the server's, and which are this client's own. Pure. */

/** Groups of settings that only this client reads; the server would say that it does not know them. */
const OWN = new Set(["client", "trace"]);

/** Return the settings of our section as the server is to see them. */
export function forServer(section: unknown): unknown {
  if (typeof section !== "object" || section === null || Array.isArray(section)) return section;
  return Object.fromEntries(Object.entries(section).filter(([name]) => !OWN.has(name)));
}

/** Return the languages with one more, or with one less. */
export function withLanguage(languages: readonly string[], language: string, disabled: boolean): string[] {
  const others = languages.filter((each) => each !== language);
  return disabled ? [...others, language] : others;
}
