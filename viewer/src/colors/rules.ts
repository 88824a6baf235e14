// The reader's own colors: a query of the search, and the color of what it finds. The first rule that fits counts.

import type { ColorRule, ColorSettings } from "./settings";

export const MOST_RULES = 20;
const LONGEST = 200;
const COLOR = /^#[0-9a-f]{6}$/;

/** Rules as an address or the browser's memory has them; what is not one is left out. */
export function readRules(data: unknown): ColorRule[] {
  if (!Array.isArray(data)) return [];
  return data.flatMap((entry: unknown): ColorRule[] => {
    const [query, color] = Array.isArray(entry) ? (entry as unknown[]) : [];
    if (typeof query !== "string" || typeof color !== "string" || query.length > LONGEST) return [];
    return COLOR.test(color.toLowerCase()) ? [{ query, color: color.toLowerCase() }] : [];
  }).slice(0, MOST_RULES);
}

export function parseRules(text: string): ColorRule[] {
  try {
    return readRules(JSON.parse(text));
  } catch {
    return [];
  }
}

export function formatRules(rules: readonly ColorRule[]): string {
  return JSON.stringify(pairsOf(rules));
}

export function pairsOf(rules: readonly ColorRule[]): [string, string][] {
  return rules.map(({ query, color }) => [query, color]);
}

/** Settings as the browser remembers them. */
export function readSettings(data: unknown): ColorSettings {
  const { by, rules } = (data ?? {}) as { by?: unknown; rules?: unknown };
  return { by: typeof by === "string" ? by : "kind", rules: readRules(rules) };
}
