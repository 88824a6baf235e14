// What is drawn: the open boxes and what they show, first as a layout request, then with places.

import type { BoxLayout, BoxSpec } from "../layout/nested";
import type { TypeInfo } from "../data/contract";
import { ancestors, shortTarget, type Box, type BoxTree, type Cell } from "./boxes";

export const HEADER = 26;
const LEAF_HEIGHT = 38;
const SMALL_HEIGHT = 22;
const MOST_WIDTH = 260;

/** Two lines of text of a cell. */
export interface Label {
  title: string;
  note: string;
  detail: string;
}

interface Opened {
  box: Box;
  spec: BoxSpec;
  topKeys: string[];
  bottomKeys: string[];
  links: Map<string, number>;
  /** For each link the instances that it joins, in pairs. */
  pairs: number[][];
  inner: Map<number, Opened>;
}

export interface SceneCell {
  cell: Cell;
  label: Label;
  open: boolean;
  depth: number;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface SceneEdge {
  path: number[];
  left: number;
  top: number;
  right: number;
  bottom: number;
  pairs: number[];
  /** Whether it ends at a node or a closed box, and not at a border that it crosses. */
  head: boolean;
  /** The key of the box that it lies in. */
  inside: string;
}

export interface Scene {
  width: number;
  height: number;
  cells: SceneCell[];
  edges: SceneEdge[];
  byKey: Map<string, SceneCell>;
  /** Which cell of the scene shows an instance: itself, or the closed box around it. */
  shownFor: (instance: number) => SceneCell | undefined;
}

export interface SceneRequest {
  spec: BoxSpec;
  /** Puts a layout together with what was asked for. */
  build: (layout: BoxLayout) => Scene;
}

export function labelCell(cell: Cell, types: readonly TypeInfo[]): Label {
  if (cell.kind === "leaf") {
    const { info } = cell;
    const isArgument = info.kind === "input" || info.kind === "parameter" || info.kind === "buffer";
    const title = isArgument || info.kind === "constant" ? info.name : shortTarget(info);
    const detail = info.type >= 0 ? (types[info.type]?.text ?? "") : "";
    return { title: clip(title, 30), note: isArgument ? info.kind : clip(cell.module, 18), detail: clip(detail, 36) };
  }
  const count = cell.nodes === 1 ? "1 node" : `${cell.nodes} nodes`;
  return { title: clip(cell.title, 30), note: clip(cell.subtitle, 36), detail: count };
}

function clip(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

export function leafSize(cell: Cell, label: Label, measure: (text: string, bold: boolean) => number): [number, number] {
  const small = cell.kind === "leaf" && label.detail === "";
  const first = measure(label.title, true) + (label.note === "" ? 0 : 8 + measure(label.note, false));
  const width = Math.max(first, measure(label.detail, false));
  return [Math.round(Math.min(MOST_WIDTH, Math.max(56, width + (cell.kind === "leaf" ? 20 : 34))) / 4) * 4, small ? SMALL_HEIGHT : LEAF_HEIGHT];
}

/** The open boxes of a tree as a layout request. */
export function prepareScene(
  tree: BoxTree,
  isOpen: (box: Box) => boolean,
  types: readonly TypeInfo[],
  measure: (text: string, bold: boolean) => number,
): SceneRequest {
  const labels = new Map<Cell, Label>();
  const places = new Map<Cell, number>();
  const opened = new Map<Box, Opened>();

  const open = (box: Box): Opened => {
    const state: Opened = {
      box,
      spec: { sizes: [], inner: {}, header: box.parent ? HEADER : 0, topPorts: 0, bottomPorts: 0, links: [] },
      topKeys: [],
      bottomKeys: [],
      links: new Map(),
      pairs: [],
      inner: new Map(),
    };
    opened.set(box, state);
    box.children.forEach((cell, place) => {
      const label = labelCell(cell, types);
      labels.set(cell, label);
      places.set(cell, place);
      state.spec.sizes.push(leafSize(cell, label, measure));
      if (cell.kind !== "leaf" && isOpen(cell)) {
        const inner = open(cell);
        state.inner.set(place, inner);
        state.spec.inner[place] = inner.spec;
      }
    });
    return state;
  };
  const root = open(tree.root);

  // The cell that stands for each cell: itself, or the outermost closed box around it.
  const standIn = new Map<Cell, Cell>();
  const shown = (cell: Cell): Cell => {
    let found = standIn.get(cell);
    if (found === undefined) {
      found = cell;
      for (const box of ancestors(cell)) if (!opened.has(box)) found = box;
      standIn.set(cell, found);
    }
    return found;
  };

  const addLink = (at: Opened, from: number, fromPort: number, to: number, toPort: number, pair: [number, number]): void => {
    const key = `${from}/${fromPort}/${to}/${toPort}`;
    let link = at.links.get(key);
    if (link === undefined) {
      link = at.spec.links.length;
      at.links.set(key, link);
      at.spec.links.push([from, fromPort, to, toPort]);
      at.pairs.push([]);
    }
    at.pairs[link].push(...pair);
  };
  const port = (keys: string[], key: string): number => {
    const found = keys.indexOf(key);
    return found >= 0 ? found : keys.push(key) - 1;
  };

  // Bottom ports are numbered after the children and the top ports before them, so they are collected first.
  const pending: [Opened, number, number, number, number, [number, number]][] = [];
  for (const [from, to] of tree.edges) {
    const source = shown(tree.cells.get(from)!);
    const sink = shown(tree.cells.get(to)!);
    if (source === sink) continue;
    const above = ancestors(source);
    const around = new Set(above);
    const below = ancestors(sink);
    const meeting = below.find((box) => around.has(box))!;
    // A call's own operands end at its box, what it computes leaves from there.
    if (meeting === source || meeting === sink || below.includes(source as Box) || above.includes(sink as Box)) continue;
    const key = source.key;
    let cell: Cell = source;
    let fromPort = -1;
    for (const box of above) {
      if (box === meeting) break;
      const at = opened.get(box)!;
      const out = port(at.bottomKeys, key);
      pending.push([at, places.get(cell)!, fromPort, out, -2, [from, to]]);
      cell = box;
      fromPort = out;
    }
    const upper = places.get(cell)!;
    cell = sink;
    let toPort = -1;
    for (const box of below) {
      if (box === meeting) break;
      const at = opened.get(box)!;
      const into = port(at.topKeys, key);
      pending.push([at, -1 - into, -1, places.get(cell)!, toPort, [from, to]]);
      cell = box;
      toPort = into;
    }
    pending.push([opened.get(meeting)!, upper, fromPort, places.get(cell)!, toPort, [from, to]]);
  }
  for (const [at, from, fromPort, to, toPort, pair] of pending) {
    if (toPort === -2) addLink(at, from, fromPort, at.spec.sizes.length + to, -1, pair);
    else addLink(at, from, fromPort, to, toPort, pair);
  }
  for (const state of opened.values()) {
    state.spec.topPorts = state.topKeys.length;
    state.spec.bottomPorts = state.bottomKeys.length;
  }

  const build = (layout: BoxLayout): Scene => {
    const cells: SceneCell[] = [];
    const edges: SceneEdge[] = [];
    const byKey = new Map<string, SceneCell>();
    const place = (state: Opened, laidOut: BoxLayout, left: number, top: number, depth: number): void => {
      laidOut.paths.forEach((path, link) => {
        if (path.length === 0) return;
        const [, , to, toPort] = state.spec.links[link];
        const head = toPort < 0 && to < state.spec.sizes.length;
        edges.push(placeEdge(path, left, top, state.pairs[link], head, state.box.key));
      });
      state.box.children.forEach((cell, i) => {
        const inner = state.inner.get(i);
        const placed: SceneCell = {
          cell,
          label: labels.get(cell)!,
          open: inner !== undefined,
          depth,
          x: left + laidOut.x[i],
          y: top + laidOut.y[i],
          width: laidOut.widths[i],
          height: laidOut.heights[i],
        };
        cells.push(placed);
        byKey.set(cell.key, placed);
        if (inner) place(inner, laidOut.inner[i], placed.x, placed.y, depth + 1);
      });
    };
    place(root, layout, 0, 0, 0);
    const shownFor = (instance: number): SceneCell | undefined => {
      const cell = tree.cells.get(instance);
      return cell && byKey.get(shown(cell).key);
    };
    return { width: layout.width, height: layout.height, cells, edges, byKey, shownFor };
  };
  return { spec: root.spec, build };
}

function placeEdge(path: number[], left: number, top: number, pairs: number[], head: boolean, inside: string): SceneEdge {
  const placed = path.map((value, i) => value + (i % 2 === 0 ? left : top));
  const edge: SceneEdge = { path: placed, left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity, pairs, head, inside };
  for (let i = 0; i < placed.length; i += 2) {
    edge.left = Math.min(edge.left, placed[i]);
    edge.right = Math.max(edge.right, placed[i]);
    edge.top = Math.min(edge.top, placed[i + 1]);
    edge.bottom = Math.max(edge.bottom, placed[i + 1]);
  }
  return edge;
}
