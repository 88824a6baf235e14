// A list of text lines of one height, of which only those in view are in the document.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

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
  line: (index: number) => LineProps;
  /** A line to bring into view when the serial changes. */
  scrollTo: { line: number; serial: string } | null;
}

export function VirtualText({ label, count, columns, gutterColumns, line, scrollTo }: Props): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);

  useEffect(() => {
    const element = frame.current!;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    const element = frame.current!;
    if (scrollTo === null || scrollTo.line < 0) return;
    const at = scrollTo.line * LINE;
    if (at < element.scrollTop + LINE || at > element.scrollTop + element.clientHeight - 3 * LINE) {
      element.scrollTop = Math.max(0, at - element.clientHeight / 3);
      setTop(element.scrollTop);
    }
  }, [scrollTo?.serial]);

  const first = Math.max(0, Math.floor(top / LINE) - SPARE);
  const last = Math.min(count, Math.ceil((top + height) / LINE) + SPARE);
  const rows: JSX.Element[] = [];
  for (let i = first; i < last; i++) {
    const { className, gutter, content, onClick } = line(i);
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
  return (
    <div
      class="virtual-text"
      ref={frame}
      tabIndex={0}
      role="region"
      aria-label={label}
      onScroll={(event) => setTop((event.currentTarget as HTMLElement).scrollTop)}
    >
      <div class="lines" style={{ height: `${count * LINE}px`, minWidth: `${columns + gutterColumns + 4}ch` }}>
        {rows}
      </div>
    </div>
  );
}
