// The values of a weight: a slice of two dims, of which only what is in view is in the document and in memory.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useView } from "../context";
import { blockPath, matrixSize, readBlock } from "../data/weights";

const ROW = 20;
/** As wide as the longest value of its kind. */
const WIDTHS: Record<string, number> = { f64: 200, i64: 170, u64: 170, c64: 220, c128: 360, f32: 132, i32: 104, u32: 104 };
const NARROW = 80;
const SIDE = 84;
/** Values are asked for in blocks of this size; so many are kept. */
const HIGH = 64;
const WIDE = 16;
const KEPT = 96;
/** Browsers do not scroll over more than some millions of pixels: longer dims have pages. */
const PAGE = 100_000;

type Loaded = string[][] | Error | null;

class Blocks {
  private readonly kept = new Map<string, Loaded>();

  constructor(
    private readonly read: (row: number, column: number) => Promise<string[][]>,
    private readonly changed: () => void,
  ) {}

  /** The block, or null while it is on its way. */
  at(row: number, column: number): Loaded {
    const key = `${row}/${column}`;
    const known = this.kept.get(key);
    if (known !== undefined) {
      this.kept.delete(key);
      this.kept.set(key, known);
      return known;
    }
    this.kept.set(key, null);
    const keep = (found: Loaded): void => {
      this.kept.set(key, found);
      this.changed();
    };
    this.read(row, column).then(keep, (error: unknown) => keep(error instanceof Error ? error : new Error(String(error))));
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value!);
    return null;
  }
}

function IndexInput({ label, size, value, choose }: { label: string; size: number; value: number; choose: (index: number) => void }): JSX.Element {
  return (
    <label class="check">
      {label}
      <input
        type="number"
        aria-label={label}
        min={0}
        max={size - 1}
        value={value}
        onChange={(event) => choose(Math.min(size - 1, Math.max(0, Math.floor(Number(event.currentTarget.value)) || 0)))}
      />
      <span>of {size.toLocaleString("en")}</span>
    </label>
  );
}

export function ValueTable({ weight, name }: { weight: number; name: string }): JSX.Element {
  const { view } = useView();
  const info = view.weights[weight];
  const [height, width] = matrixSize(info.shape);
  const across = WIDTHS[info.wire] ?? NARROW;
  const leading = info.shape.slice(0, -2);
  const [fixed, setFixed] = useState<number[]>(() => leading.map(() => 0));
  const [page, setPage] = useState({ row: 0, column: 0 });
  const [scroll, setScroll] = useState({ top: 0, left: 0, height: 400, width: 600 });
  const [, setVersion] = useState(0);
  const frame = useRef<HTMLDivElement>(null);
  const slice = fixed.join(".");

  const blocks = useMemo(() => {
    let isCurrent = true;
    const read = (row: number, column: number): Promise<string[][]> => {
      const rows: [number, number] = [row * HIGH, Math.min(height, (row + 1) * HIGH)];
      const columns: [number, number] = [column * WIDE, Math.min(width, (column + 1) * WIDE)];
      return readBlock(view, weight, { fixed, rows, columns });
    };
    const made = new Blocks(read, () => isCurrent && setVersion((version) => version + 1));
    return { made, leave: () => (isCurrent = false) };
  }, [weight, slice]);
  useEffect(() => () => void blocks.leave(), [blocks]);

  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const observer = new ResizeObserver(() => measure());
    observer.observe(element);
    return () => observer.disconnect();
  }, [weight]);
  const measure = (): void => {
    const element = frame.current;
    if (!element) return;
    setScroll({ top: element.scrollTop, left: element.scrollLeft, height: element.clientHeight, width: element.clientWidth });
  };

  if (height === 0 || width === 0 || leading.includes(0)) return <p class="empty">It has no values.</p>;
  const rows = Math.min(PAGE, height - page.row * PAGE);
  const columns = Math.min(PAGE, width - page.column * PAGE);
  const firstRow = Math.max(0, Math.floor(scroll.top / ROW) - 2);
  const lastRow = Math.min(rows, Math.ceil((scroll.top + scroll.height) / ROW) + 1);
  const firstColumn = Math.max(0, Math.floor(scroll.left / across) - 1);
  const lastColumn = Math.min(columns, Math.ceil((scroll.left + scroll.width) / across));
  const [baseRow, baseColumn] = [page.row * PAGE, page.column * PAGE];

  let failure: Error | null = null;
  const value = (row: number, column: number): string => {
    const found = blocks.made.at(Math.floor(row / HIGH), Math.floor(column / WIDE));
    if (found instanceof Error) failure = found;
    return found === null || found instanceof Error ? "…" : (found[row % HIGH]?.[column % WIDE] ?? "");
  };
  const columnNumbers = Array.from({ length: Math.max(0, lastColumn - firstColumn) }, (_, i) => firstColumn + i);
  const body: JSX.Element[] = [];
  for (let row = firstRow; row < lastRow; row++) {
    body.push(
      <div class="value-row" role="row" aria-rowindex={baseRow + row + 1} key={row} style={{ top: `${(row + 1) * ROW}px` }}>
        <span class="value-side" role="rowheader">
          {baseRow + row}
        </span>
        {columnNumbers.map((column) => (
          <span class="value" role="gridcell" aria-colindex={baseColumn + column + 1} key={column} style={{ left: `${SIDE + column * across}px`, width: `${across}px` }}>
            {value(baseRow + row, baseColumn + column)}
          </span>
        ))}
      </div>,
    );
  }
  const goTo = (row: number, column: number): void => {
    setPage({ row: Math.floor(row / PAGE), column: Math.floor(column / PAGE) });
    requestAnimationFrame(() => frame.current?.scrollTo((column % PAGE) * across, (row % PAGE) * ROW));
  };
  const [atRow, atColumn] = [baseRow + Math.floor(scroll.top / ROW), baseColumn + Math.floor(scroll.left / across)];
  return (
    <div class="value-table">
      <div class="value-controls">
        {leading.map((size, dim) => (
          <IndexInput key={dim} label={`dim ${dim}`} size={size} value={fixed[dim] ?? 0} choose={(index) => setFixed(leading.map((_, i) => (i === dim ? index : (fixed[i] ?? 0))))} />
        ))}
        <IndexInput label="row" size={height} value={Math.min(atRow, height - 1)} choose={(row) => goTo(row, atColumn)} />
        {width > 1 && <IndexInput label="column" size={width} value={Math.min(atColumn, width - 1)} choose={(column) => goTo(atRow, column)} />}
      </div>
      {failure !== null && (
        <p class="notes" role="alert">
          {(failure as Error).message}
        </p>
      )}
      <div
        class="value-frame"
        ref={frame}
        tabIndex={0}
        role="grid"
        aria-label={`Values of ${name}`}
        aria-rowcount={height}
        aria-colcount={width}
        data-path={blockPath(weight, { fixed, rows: [baseRow, baseRow + rows], columns: [baseColumn, baseColumn + columns] })}
        onScroll={measure}
      >
        <div class="value-ground" style={{ height: `${(rows + 1) * ROW}px`, width: `${SIDE + columns * across}px` }}>
          <div class="value-head" role="row">
            {columnNumbers.map((column) => (
              <span class="value" role="columnheader" key={column} style={{ left: `${SIDE + column * across}px`, width: `${across}px` }}>
                {baseColumn + column}
              </span>
            ))}
          </div>
          {body}
        </div>
      </div>
    </div>
  );
}
