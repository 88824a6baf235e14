// The boxes and nodes of the stage as a tree: the same as the graph, for reading, for keys and for screen readers. With a query, what
// was found.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useView } from "../context";
import { plural } from "../data/format";
import { ancestors, shortTarget, type Box, type Cell } from "../graph/boxes";
import { categoryOf } from "../graph/categories";
import { Pane } from "./Pane";

const ROW = 22;
const SPARE = 10;
const SIGNS = { "": "", added: "+", removed: "−", replaced: "~" } as const;

interface OutlineRow {
  cell: Cell;
  depth: number;
}

export function Outline(): JSX.Element {
  const state = useView();
  const tree = state.tree.value;
  const version = state.openedVersion.value;
  const query = state.query.value;
  const hits = state.hits.value;
  const linked = state.linked.value;
  const seed = state.seed.value;
  const stage = state.graphStage.value;
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const [active, setActive] = useState(0);

  useEffect(() => {
    const element = frame.current!;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const isSearch = query.trim() !== "";
  const rows = useMemo((): OutlineRow[] => {
    if (tree === null) return [];
    const found: OutlineRow[] = [];
    if (isSearch) {
      for (const id of hits) {
        const cell = tree.cells.get(id);
        if (cell) found.push({ cell, depth: 0 });
      }
      return found;
    }
    const walk = (box: Box, depth: number): void => {
      for (const cell of box.children) {
        found.push({ cell, depth });
        if (cell.kind !== "leaf" && state.isOpen(cell)) walk(cell, depth + 1);
      }
    };
    walk(tree.root, 0);
    return found;
  }, [tree, version, isSearch, hits]);

  const isSelected = (cell: Cell): boolean => {
    if (cell.kind === "leaf") return (linked?.nodes.has(cell.index) ?? false) && seed?.kind !== "module";
    if (seed?.kind === "module") return cell.module === seed.module;
    return cell.instance >= 0 && stage !== null && (linked?.nodes.has(stage.instances[cell.instance]?.index) ?? false);
  };
  const choose = (cell: Cell): void => {
    if (cell.kind === "leaf" || cell.instance >= 0) {
      const instance = stage?.instances[cell.instance];
      const index = cell.kind === "leaf" ? cell.index : instance!.index;
      state.select({ kind: "node", index, graph: instance ? stage!.graphs[instance.graph].path : "" });
    } else if (cell.module >= 0) {
      state.select({ kind: "module", module: cell.module }, false);
      state.revealBox(cell);
    } else state.revealBox(cell);
  };
  const scrollTo = (row: number): void => {
    const element = frame.current;
    if (!element || row < 0) return;
    if (row * ROW < element.scrollTop) element.scrollTop = row * ROW;
    else if ((row + 1) * ROW > element.scrollTop + element.clientHeight) element.scrollTop = (row + 1) * ROW - element.clientHeight;
  };
  useEffect(() => {
    if (isSearch) return;
    const row = rows.findIndex(({ cell }) => isSelected(cell));
    if (row < 0) return;
    setActive(row);
    scrollTo(row);
  }, [linked, rows]);

  const onKeyDown = (event: KeyboardEvent): void => {
    const row = rows[active];
    const go = (next: number): void => {
      const bounded = Math.max(0, Math.min(rows.length - 1, next));
      setActive(bounded);
      scrollTo(bounded);
    };
    if (event.key === "ArrowDown") go(active + 1);
    else if (event.key === "ArrowUp") go(active - 1);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(rows.length - 1);
    else if (event.key === "PageDown") go(active + Math.floor(height / ROW));
    else if (event.key === "PageUp") go(active - Math.floor(height / ROW));
    else if (!row) return;
    else if (event.key === "Enter" || event.key === " ") choose(row.cell);
    else if (event.key === "ArrowRight" && row.cell.kind !== "leaf" && !isSearch) {
      if (state.isOpen(row.cell)) go(active + 1);
      else state.setOpen([row.cell], true);
    } else if (event.key === "ArrowLeft" && !isSearch) {
      if (row.cell.kind !== "leaf" && state.isOpen(row.cell)) state.setOpen([row.cell], false);
      else go(rows.findIndex(({ cell }) => cell === row.cell.parent));
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  const last = Math.min(rows.length, Math.ceil((top + height) / ROW) + SPARE);
  const title = isSearch ? "Found" : "Outline";
  const note = isSearch ? plural(hits.length, "node") : "";
  return (
    <Pane name="outline" title={title} note={note}>
      <div
        class="outline"
        ref={frame}
        role="tree"
        tabIndex={0}
        aria-label={isSearch ? `Nodes found by ${query}` : "Modules and nodes"}
        aria-activedescendant={rows[active] ? `row-${active}` : undefined}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
        onKeyDown={onKeyDown}
      >
        <div class="outline-rows" role="presentation" style={{ height: `${rows.length * ROW}px` }}>
          {rows.slice(first, last).map(({ cell, depth }, i) => {
            const at = first + i;
            return (
              <OutlineItem
                key={cell.key}
                cell={cell}
                depth={depth}
                row={at}
                active={at === active}
                selected={isSelected(cell)}
                flat={isSearch}
                open={cell.kind !== "leaf" && state.isOpen(cell)}
                onChoose={() => {
                  setActive(at);
                  choose(cell);
                }}
                onToggle={() => cell.kind !== "leaf" && state.setOpen([cell], !state.isOpen(cell))}
              />
            );
          })}
        </div>
        {isSearch && rows.length === 0 && (
          <p class="empty">
            Nothing found. Write words, or op:linear, module:layer.0, line:model.py:12, shape:768, name:add.
          </p>
        )}
      </div>
    </Pane>
  );
}

interface ItemProps {
  cell: Cell;
  depth: number;
  row: number;
  active: boolean;
  selected: boolean;
  open: boolean;
  flat: boolean;
  onChoose: () => void;
  onToggle: () => void;
}

function OutlineItem({ cell, depth, row, active, selected, open, flat, onChoose, onToggle }: ItemProps): JSX.Element {
  const isLeaf = cell.kind === "leaf";
  const changes = isLeaf ? SIGNS[cell.change] : "";
  const name = isLeaf ? cell.info.name : cell.title;
  const path = flat
    ? ancestors(cell)
        .filter((box) => box.kind === "module")
        .map((box) => box.title)
        .reverse()
        .join(".")
    : "";
  const note = isLeaf ? (cell.info.kind === "operator" ? shortTarget(cell.info) : cell.info.kind) : cell.subtitle;
  return (
    <div
      id={`row-${row}`}
      class={`outline-row${active ? " active" : ""}${selected ? " linked" : ""}`}
      style={{ top: `${row * ROW}px`, paddingLeft: `${6 + depth * 13}px` }}
      role="treeitem"
      aria-level={depth + 1}
      aria-expanded={isLeaf || flat ? undefined : open}
      aria-selected={selected}
      data-key={cell.key}
      onClick={onChoose}
    >
      {isLeaf ? (
        <span class={`dot c-${categoryOf(cell.info)}`} aria-hidden="true" />
      ) : (
        <span
          class={`twisty${open ? " open" : ""}`}
          aria-hidden="true"
          onClick={(event) => {
            event.stopPropagation();
            onToggle();
          }}
        />
      )}
      <span class="outline-name">{name}</span>
      <span class="outline-note">{path === "" ? note : `${note} · ${path}`}</span>
      {isLeaf && changes !== "" && <span class={`${cell.change}-text sign`}>{changes}</span>}
      {!isLeaf &&
        (["added", "replaced", "removed"] as const).map(
          (mark) =>
            cell.changes[mark] > 0 && (
              <span key={mark} class={`${mark}-text sign`}>
                {SIGNS[mark]}
                {cell.changes[mark]}
              </span>
            ),
        )}
    </div>
  );
}
