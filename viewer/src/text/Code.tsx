// A line of code in colors, with what was found in it.

import type { JSX } from "preact";
import type { Match } from "./find";
import { tokenize, type Language, type Token } from "./tokens";

interface Piece extends Token {
  match: Match | null;
}

/** The tokens of a line, cut where a match begins or ends. */
export function cutTokens(tokens: readonly Token[], matches: readonly Match[]): Piece[] {
  const pieces: Piece[] = [];
  let at = 0;
  let next = 0;
  for (const { kind, text } of tokens) {
    let from = 0;
    while (from < text.length) {
      while (next < matches.length && matches[next].end <= at + from) next++;
      const match = matches[next] ?? null;
      const isInside = match !== null && match.start <= at + from;
      const cut = match === null ? text.length : isInside ? match.end - at : match.start - at;
      const to = Math.min(text.length, cut);
      pieces.push({ kind, text: text.slice(from, to), match: isInside ? match : null });
      from = to;
    }
    at += text.length;
  }
  return pieces;
}

interface Props {
  text: string;
  language: Language;
  matches: readonly Match[];
  current: Match | null;
}

export function Code({ text, language, matches, current }: Props): JSX.Element {
  const tokens = tokenize(text, language);
  const pieces: Piece[] = matches.length > 0 ? cutTokens(tokens, matches) : tokens.map((token) => ({ ...token, match: null }));
  return (
    <>
      {pieces.map(({ kind, text, match }, i) => {
        if (kind === "" && match === null) return text;
        const colored = kind === "" ? text : <span class={`t-${kind}`}>{text}</span>;
        if (match === null) return <span key={i} class={`t-${kind}`}>{text}</span>;
        return (
          <mark key={i} class={match === current ? "current" : ""}>
            {colored}
          </mark>
        );
      })}
    </>
  );
}
