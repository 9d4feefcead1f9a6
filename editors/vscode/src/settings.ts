/** Separates the server's settings from this client's own, and reads their values. Pure. */

/** Groups of settings that only this client reads; the server would report them as unknown. */
const CLIENT_GROUPS = new Set(["client", "trace"]);

/** Return the settings of our section without the client's own groups. */
export function forServer(section: unknown): unknown {
  if (typeof section !== "object" || section === null || Array.isArray(section)) return section;
  return Object.fromEntries(Object.entries(section).filter(([name]) => !CLIENT_GROUPS.has(name)));
}

/** Return the strings in a setting that should be a list of strings; the user may have written something else. */
export function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((each) => typeof each === "string") : [];
}

/** Return the command line in a setting, empty if there is none; throw an error if it is not a list of strings. */
export function commandLine(value: unknown): string[] {
  const parts = strings(value);
  if (value === null || value === undefined || (Array.isArray(value) && value.length === 0)) return [];
  if (!Array.isArray(value) || parts.length < value.length || !parts[0]) {
    throw new Error('the setting dgLsp.client.command must be a list of strings, such as ["/opt/dg/bin/dg-lsp", "serve"]');
  }
  return parts;
}

/** Return why the settings allow no unprompted suggestion in a language; undefined if they allow them. */
export function pauseReason(settings: { enable: unknown; trigger: unknown; disabledLanguages: unknown }, language: string | undefined): string | undefined {
  if (settings.enable === false) return "suggestions are turned off by the setting dgLsp.enable";
  if (settings.trigger === "manual") return "suggestions come only on request";
  if (language !== undefined && strings(settings.disabledLanguages).includes(language)) return `suggestions are paused for ${language}`;
  return undefined;
}

/** Return the languages with one of them added or removed. */
export function withLanguage(languages: readonly string[], language: string, disabled: boolean): string[] {
  const others = languages.filter((each) => each !== language);
  return disabled ? [...others, language] : others;
}
