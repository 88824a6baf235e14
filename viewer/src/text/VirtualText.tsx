// A list of text lines of one height, of which only those in view are in the document. Ctrl+F finds in all of them.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { matchesOfLine, type Match } from "./find";
import { FindBar, useFind } from "./FindBar";

export const LINE = 18;
const SPARE = 8;

export interface LineProps {
  className: string;
  gutter: string;
  content: ComponentChildren;
  onClick: (() => void) | null;
}

interface Props {
  label: string;
  count: number;
  /** Columns of the longest line: how far one can scroll. */
  columns: number;
  gutterColumns: number;
  /** The text of a line, to find in. What it says changes with `content` only. */
  text: (index: number) => string;
  content: unknown;
  line: (index: number, matches: readonly Match[], current: Match | null) => LineProps;
  /** A line to bring into view when the serial changes. */
  scrollTo: { line: number; serial: string } | null;
}

export function VirtualText({ label, count, columns, gutterColumns, text, content, line, scrollTo }: Props): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const find = useFind(count, text, content, () => Math.floor(frame.current!.scrollTop / LINE));
  const current = find.query === null ? null : (find.matches[find.at] ?? null);

  useEffect(() => {
    const element = frame.current!;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const show = (index: number): void => {
    const element = frame.current!;
    const at = index * LINE;
    if (at < element.scrollTop + LINE || at > element.scrollTop + element.clientHeight - 3 * LINE) {
      element.scrollTop = Math.max(0, at - element.clientHeight / 3);
      setTop(element.scrollTop);
    }
  };
  useLayoutEffect(() => {
    if (scrollTo !== null && scrollTo.line >= 0) show(scrollTo.line);
  }, [scrollTo?.serial]);
  useLayoutEffect(() => {
    if (current === null) return;
    show(current.line);
    frame.current!.querySelector("mark.current")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [find.serial]);

  const first = Math.max(0, Math.floor(top / LINE) - SPARE);
  const last = Math.min(count, Math.ceil((top + height) / LINE) + SPARE);
  const rows: JSX.Element[] = [];
  for (let i = first; i < last; i++) {
    const { className, gutter, content, onClick } = line(i, matchesOfLine(find.matches, i), current);
    rows.push(
      <div
        key={i}
        class={`line ${className}${onClick ? " can-select" : ""}`}
        style={{ top: `${i * LINE}px` }}
        data-line={i}
        onClick={onClick ?? undefined}
      >
        <span class="gutter" style={{ width: `${gutterColumns}ch` }} aria-hidden="true">
          {gutter}
        </span>
        <span class="code">{content}</span>
      </div>,
    );
  }
  const close = (): void => {
    find.close();
    frame.current!.focus();
  };
  return (
    <div
      class="text-frame"
      onKeyDown={(event) => {
        if (event.key.toLowerCase() === "f" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
          find.open();
          event.currentTarget.querySelector<HTMLInputElement>(".find-bar input")?.select();
          event.currentTarget.querySelector<HTMLInputElement>(".find-bar input")?.focus();
        } else if (event.key === "F3" && find.query !== null) find.go(event.shiftKey ? -1 : 1);
        else if (event.key === "Escape" && find.query !== null) close();
        else return;
        event.preventDefault();
        event.stopPropagation();
      }}
    >
      {find.query !== null && <FindBar find={find} label={label} onClose={close} />}
      <div
        class="virtual-text"
        ref={frame}
        tabIndex={0}
        role="region"
        aria-label={label}
        aria-keyshortcuts="Control+F"
        onScroll={(event) => setTop((event.currentTarget as HTMLElement).scrollTop)}
      >
        <div class="lines" style={{ height: `${count * LINE}px`, minWidth: `${columns + gutterColumns + 4}ch` }}>
          {rows}
        </div>
      </div>
    </div>
  );
}
