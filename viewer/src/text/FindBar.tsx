// The bar of a text pane in which one types what to find.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { findMatches, matchFrom, MOST_MATCHES, type Match } from "./find";

export interface Find {
  /** What is looked for; null: the bar is closed. */
  query: string | null;
  matches: readonly Match[];
  /** Which of the matches is shown; -1: none. */
  at: number;
  /** Counts up whenever the match that is shown has to be brought into view. */
  serial: number;
  open: () => void;
  close: () => void;
  look: (query: string) => void;
  go: (by: number) => void;
}

/** Finds in the lines of a text. `topLine` says where the reader is: matches are found from there on. */
export function useFind(count: number, textOf: (line: number) => string, content: unknown, topLine: () => number): Find {
  const [query, setQuery] = useState<string | null>(null);
  const [at, setAt] = useState(-1);
  const [serial, setSerial] = useState(0);
  const matches = useMemo(() => findMatches(query ?? "", count, textOf), [query, count, content]);
  // Of another text the match at the same place, if there is one, but without scrolling to it.
  const shown = at < matches.length ? at : matches.length - 1;
  const goTo = (match: number): void => {
    setAt(match);
    setSerial((number) => number + 1);
  };
  const look = (wanted: string): void => {
    setQuery(wanted);
    const from = matches[shown]?.line ?? topLine();
    goTo(matchFrom(findMatches(wanted, count, textOf), from));
  };
  return {
    query,
    matches,
    at: shown,
    serial,
    open: () => (query === null ? look("") : setSerial((number) => number + 1)),
    close: () => setQuery(null),
    look,
    go: (by) => matches.length > 0 && goTo((shown + by + matches.length) % matches.length),
  };
}

export function FindBar({ find, label, onClose }: { find: Find; label: string; onClose: () => void }): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    input.current!.focus();
    input.current!.select();
  }, []);
  const { query, matches, at } = find;
  const total = matches.length === MOST_MATCHES ? `${MOST_MATCHES} or more` : String(matches.length);
  const count = query === "" ? "" : matches.length === 0 ? "nothing found" : `${at + 1} of ${total}`;
  return (
    <div class="find-bar" role="search" aria-label={`Find in ${label}`}>
      <input
        ref={input}
        type="text"
        spellcheck={false}
        aria-label={`Find in ${label}`}
        placeholder="Find"
        value={query ?? ""}
        onInput={(event) => find.look(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") find.go(event.shiftKey ? -1 : 1);
          else if (event.key === "Escape") onClose();
          else return;
          event.preventDefault();
          event.stopPropagation();
        }}
      />
      <span class="find-count" aria-live="polite">
        {count}
      </span>
      <button type="button" class="icon" aria-label="Previous match" title="Previous (Shift+Enter)" onClick={() => find.go(-1)}>
        ↑
      </button>
      <button type="button" class="icon" aria-label="Next match" title="Next (Enter)" onClick={() => find.go(1)}>
        ↓
      </button>
      <button type="button" class="icon" aria-label="Close find" title="Close (Esc)" onClick={onClose}>
        ×
      </button>
    </div>
  );
}
