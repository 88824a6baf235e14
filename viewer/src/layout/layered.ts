// Layered layout of one box: layers by longest path, orders by barycentre sweeps, then positions.
// A box holds at most some hundred items, because boxes are laid out one by one, from the inside out.

import { placeAcross, type Segment } from "./coordinates";

/** What is laid out: a size each. */
export interface Item {
  width: number;
  height: number;
  /** A port lies on the upper or the lower border of the box. */
  port?: "top" | "bottom";
}

/** An edge between two items. The offsets say where on its border an edge leaves or enters, from the middle. */
export interface Link {
  from: number;
  to: number;
  fromOffset: number;
  toOffset: number;
  /** Links of one item with the same bundle share their path as far as they go together. */
  bundle: number;
}

export interface Placement {
  width: number;
  height: number;
  /** The upper left corner of each item. */
  x: number[];
  y: number[];
  /** For each link x0, y0, x1, y1, …: a path to be drawn with vertical tangents. */
  paths: number[][];
}

export interface Spacing {
  layer: number;
  item: number;
  bend: number;
  margin: number;
}

export const SPACING: Spacing = { layer: 26, item: 16, bend: 10, margin: 14 };

const SWEEPS = 6;

/** The items and the bends of long links, with their layers, orders and neighbors. */
class LayeredGraph {
  readonly layerOf: number[] = [];
  readonly width: number[] = [];
  readonly layers: number[][] = [];
  readonly above: Segment[][] = [];
  readonly below: Segment[][] = [];
  readonly position: number[] = [];

  constructor(readonly items: number) {}

  add(layer: number, width: number): number {
    const index = this.layerOf.length;
    this.layerOf.push(layer);
    this.width.push(width);
    this.above.push([]);
    this.below.push([]);
    while (this.layers.length <= layer) this.layers.push([]);
    this.layers[layer].push(index);
    return index;
  }

  connect(upper: number, lower: number, upperOffset: number, lowerOffset: number): void {
    const segment = { upper, lower, upperOffset, lowerOffset };
    this.below[upper].push(segment);
    this.above[lower].push(segment);
  }

  isBend(index: number): boolean {
    return index >= this.items;
  }

  number(): void {
    for (const layer of this.layers) layer.forEach((index, place) => (this.position[index] = place));
  }
}

/** Layers by the longest path; then items without predecessors, and others with more users than inputs, move down. */
export function assignLayers(count: number, forward: [number, number][]): number[] {
  const successors: number[][] = Array.from({ length: count }, () => []);
  const predecessors: number[][] = Array.from({ length: count }, () => []);
  for (const [from, to] of forward) {
    successors[from].push(to);
    predecessors[to].push(from);
  }
  const order = topologicalOrder(successors, predecessors);
  const layer = new Array<number>(count).fill(0);
  for (const index of order) {
    for (const next of successors[index]) layer[next] = Math.max(layer[next], layer[index] + 1);
  }
  for (let i = order.length - 1; i >= 0; i--) {
    const index = order[i];
    if (successors[index].length === 0 || predecessors[index].length > successors[index].length) continue;
    if (predecessors[index].length === successors[index].length && predecessors[index].length > 0) continue;
    let lowest = Infinity;
    for (const next of successors[index]) lowest = Math.min(lowest, layer[next] - 1);
    layer[index] = Math.max(layer[index], lowest);
  }
  return layer;
}

function topologicalOrder(successors: number[][], predecessors: number[][]): number[] {
  const waiting = predecessors.map((list) => list.length);
  const order = waiting.flatMap((count, index) => (count === 0 ? [index] : []));
  for (let i = 0; i < order.length; i++) {
    for (const next of successors[order[i]]) if (--waiting[next] === 0) order.push(next);
  }
  return order;
}

/** Which links go against the order of the items or close a cycle: found by depth-first search, in item order. */
export function findBackward(count: number, links: readonly Link[]): boolean[] {
  const outgoing: number[][] = Array.from({ length: count }, () => []);
  links.forEach((link, index) => outgoing[link.from].push(index));
  const state = new Uint8Array(count);
  const backward = new Array<boolean>(links.length).fill(false);
  const stack: [number, number][] = [];
  for (let root = 0; root < count; root++) {
    if (state[root] !== 0) continue;
    state[root] = 1;
    stack.push([root, 0]);
    while (stack.length > 0) {
      const top = stack[stack.length - 1];
      if (top[1] === outgoing[top[0]].length) {
        state[top[0]] = 2;
        stack.pop();
        continue;
      }
      const link = outgoing[top[0]][top[1]++];
      const next = links[link].to;
      if (state[next] === 1) backward[link] = true;
      else if (state[next] === 0) {
        state[next] = 1;
        stack.push([next, 0]);
      }
    }
  }
  return backward;
}

function crossings(graph: LayeredGraph): number {
  let total = 0;
  for (const layer of graph.layers.slice(0, -1)) {
    const ends: number[] = [];
    let size = 0;
    for (const index of layer) {
      const row = graph.below[index].map((segment) => graph.position[segment.lower]).sort((a, b) => a - b);
      for (const place of row) {
        ends.push(place);
        size = Math.max(size, place + 1);
      }
    }
    // Pairs in the wrong order, counted with a Fenwick tree.
    const tree = new Int32Array(size + 1);
    for (let i = ends.length - 1; i >= 0; i--) {
      for (let k = ends[i]; k > 0; k -= k & -k) total += tree[k];
      for (let k = ends[i] + 1; k <= size; k += k & -k) tree[k]++;
    }
  }
  return total;
}

function sortLayer(graph: LayeredGraph, layer: number[], segments: Segment[][], end: "upper" | "lower"): void {
  const offset = end === "upper" ? "upperOffset" : "lowerOffset";
  const value = layer.map((index, place) => {
    const near = segments[index];
    if (near.length === 0) return place;
    let sum = 0;
    for (const segment of near) sum += graph.position[segment[end]] + Math.sign(segment[offset]) * 0.1;
    return sum / near.length;
  });
  const sorted = layer.map((_, place) => place).sort((a, b) => value[a] - value[b] || a - b);
  const moved = sorted.map((place) => layer[place]);
  moved.forEach((index, place) => {
    layer[place] = index;
    graph.position[index] = place;
  });
}

function orderLayers(graph: LayeredGraph): void {
  graph.number();
  let fewest = crossings(graph);
  let best = graph.layers.map((layer) => layer.slice());
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep++) {
    if (sweep % 2 === 0) for (const layer of graph.layers.slice(1)) sortLayer(graph, layer, graph.above, "upper");
    else for (let i = graph.layers.length - 2; i >= 0; i--) sortLayer(graph, graph.layers[i], graph.below, "lower");
    const count = crossings(graph);
    if (count < fewest) {
      fewest = count;
      best = graph.layers.map((layer) => layer.slice());
    }
  }
  best.forEach((layer, i) => (graph.layers[i] = layer));
  graph.number();
}

/** Lays out items from top to bottom along their links. The same input gives the same layout. */
export function layered(items: readonly Item[], links: readonly Link[], spacing: Spacing = SPACING): Placement {
  const backward = findBackward(items.length, links);
  const forward = links.map((link, i): [number, number] => (backward[i] ? [link.to, link.from] : [link.from, link.to]));
  const proper = forward.filter(([from, to]) => from !== to);
  const layer = assignLayers(
    items.length,
    proper.filter(([from, to]) => items[from].port === undefined && items[to].port === undefined),
  );
  const hasTop = items.some((item) => item.port === "top");
  const hasBottom = items.some((item) => item.port === "bottom");
  if (hasTop) items.forEach((item, i) => (layer[i] = item.port === "top" ? 0 : layer[i] + 1));
  if (hasBottom) {
    const deepest = Math.max(...layer);
    items.forEach((item, i) => (layer[i] = item.port === "bottom" ? deepest + 1 : layer[i]));
  }
  const graph = new LayeredGraph(items.length);
  items.forEach((item, index) => graph.add(layer[index], item.width));

  // The bends of each link, one per layer in between; links of a bundle share them.
  const shared = new Map<string, number>();
  const chains = links.map((link, i): number[] => {
    const [upper, lower] = forward[i];
    if (upper === lower) return [];
    const upperOffset = backward[i] ? link.toOffset : link.fromOffset;
    const lowerOffset = backward[i] ? link.fromOffset : link.toOffset;
    const chain: number[] = [];
    let previous = upper;
    for (let at = layer[upper] + 1; at < layer[lower]; at++) {
      const key = `${upper}/${backward[i] ? `back${i}` : link.bundle}/${at}`;
      let bend = shared.get(key);
      if (bend === undefined) {
        bend = graph.add(at, 0);
        shared.set(key, bend);
        graph.connect(previous, bend, previous === upper ? upperOffset : 0, 0);
      }
      chain.push(bend);
      previous = bend;
    }
    graph.connect(previous, lower, previous === upper ? upperOffset : 0, lowerOffset);
    return chain;
  });
  orderLayers(graph);
  const center = placeAcross({
    layers: graph.layers,
    position: graph.position,
    above: graph.above,
    below: graph.below,
    isBend: (index) => graph.isBend(index),
    distance: (left, right) => {
      const room = graph.isBend(left) && graph.isBend(right) ? spacing.bend : spacing.item;
      return (graph.width[left] + graph.width[right]) / 2 + room;
    },
  });

  const heights = graph.layers.map((row) => Math.max(0, ...row.map((i) => (graph.isBend(i) ? 0 : items[i].height))));
  const tops: number[] = [];
  let top = hasTop ? 0 : spacing.margin;
  for (const height of heights) {
    tops.push(top);
    top += height + spacing.layer;
  }
  let left = Infinity;
  let right = -Infinity;
  center.forEach((value, index) => {
    left = Math.min(left, value - graph.width[index] / 2);
    right = Math.max(right, value + graph.width[index] / 2);
  });
  if (items.length === 0) left = right = 0;
  const shift = spacing.margin - left;
  const x = items.map((item, i) => Math.round(center[i] + shift - item.width / 2));
  const y = items.map((item, i) => Math.round(tops[layer[i]] + (heights[layer[i]] - item.height) / 2));
  const paths = links.map((link, i) => {
    const [upper, lower] = forward[i];
    if (upper === lower) return [];
    const offsets = backward[i] ? [link.toOffset, link.fromOffset] : [link.fromOffset, link.toOffset];
    const path = [x[upper] + items[upper].width / 2 + offsets[0], y[upper] + items[upper].height];
    for (const bend of chains[i]) {
      const at = graph.layerOf[bend];
      const bendX = Math.round(center[bend] + shift);
      path.push(bendX, tops[at]);
      if (heights[at] > 0) path.push(bendX, tops[at] + heights[at]);
    }
    path.push(x[lower] + items[lower].width / 2 + offsets[1], y[lower]);
    if (!backward[i]) return path;
    const reversed: number[] = [];
    for (let k = path.length - 2; k >= 0; k -= 2) reversed.push(path[k], path[k + 1]);
    return reversed;
  });
  return {
    width: Math.round(right - left) + 2 * spacing.margin,
    height: items.length > 0 ? Math.round(top - spacing.layer + (hasBottom ? 0 : spacing.margin)) : 2 * spacing.margin,
    x,
    y,
    paths,
  };
}
