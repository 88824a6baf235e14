// Find in a text of which only the lines in view are in the document.

/** A part of a line, in characters. */
export interface Span {
  start: number;
  end: number;
}

export interface Match extends Span {
  line: number;
}

export const MOST_MATCHES = 10_000;

/** Where a text has what is looked for, line by line, in any case of letters. At most `MOST_MATCHES`. */
export function findMatches(query: string, count: number, textOf: (line: number) => string): Match[] {
  const wanted = query.toLowerCase();
  const matches: Match[] = [];
  if (wanted === "") return matches;
  for (let line = 0; line < count; line++) {
    const text = textOf(line).toLowerCase();
    for (let start = text.indexOf(wanted); start >= 0; start = text.indexOf(wanted, start + wanted.length)) {
      matches.push({ line, start, end: start + wanted.length });
      if (matches.length === MOST_MATCHES) return matches;
    }
  }
  return matches;
}

/** The matches of one line, of a list in the order of lines. */
export function matchesOfLine(matches: readonly Match[], line: number): Match[] {
  let low = 0;
  let high = matches.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (matches[middle].line < line) low = middle + 1;
    else high = middle;
  }
  const found: Match[] = [];
  while (low < matches.length && matches[low].line === line) found.push(matches[low++]);
  return found;
}

/** The first match at a line or behind it, else the first of all; -1 where there is none. */
export function matchFrom(matches: readonly Match[], line: number): number {
  const at = matches.findIndex((match) => match.line >= line);
  return at >= 0 ? at : matches.length > 0 ? 0 : -1;
}
