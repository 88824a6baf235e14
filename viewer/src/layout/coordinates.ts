// Horizontal positions after Brandes and Köpf: nodes are aligned with a median neighbor in blocks, blocks are packed, and four such
// layouts are averaged. Blocks keep the ends of their edges in line, not the middles of the nodes, so that edges between ports are straight.

export interface Segment {
  upper: number;
  lower: number;
  /** Where the edge ends, from the middles of both. */
  upperOffset: number;
  lowerOffset: number;
}

export interface Layers {
  layers: number[][];
  position: number[];
  above: Segment[][];
  below: Segment[][];
  isBend: (index: number) => boolean;
  /** The least distance between the middles of neighbors in a layer. */
  distance: (left: number, right: number) => number;
}

/** Segments that cross one between two bends: long edges stay straight, so these bend. */
function findConflicts(graph: Layers): Set<Segment> {
  const conflicts = new Set<Segment>();
  for (let i = 0; i + 1 < graph.layers.length; i++) {
    const upper = graph.layers[i];
    const lower = graph.layers[i + 1];
    let scanned = 0;
    let first = 0;
    lower.forEach((index, place) => {
      const inner = graph.isBend(index) ? graph.above[index].find((segment) => graph.isBend(segment.upper)) : undefined;
      if (inner === undefined && place < lower.length - 1) return;
      const last = inner === undefined ? upper.length : graph.position[inner.upper];
      for (; scanned <= place; scanned++) {
        for (const segment of graph.above[lower[scanned]]) {
          const at = graph.position[segment.upper];
          const isInner = graph.isBend(segment.upper) && graph.isBend(segment.lower);
          if ((at < first || at > last) && !isInner) conflicts.add(segment);
        }
      }
      first = last;
    });
  }
  return conflicts;
}

/** One of the four layouts: aligned with the layer above or below, and packed to the left or to the right. */
function placeOnce(graph: Layers, conflicts: Set<Segment>, down: boolean, left: boolean): number[] {
  const count = graph.position.length;
  const ordered = graph.layers.map((layer) => (left ? layer : layer.slice().reverse()));
  const place = new Array<number>(count);
  for (const layer of ordered) layer.forEach((index, i) => (place[index] = i));
  const sign = left ? 1 : -1;

  const root = Array.from({ length: count }, (_, i) => i);
  const aligned = root.slice();
  const shift = new Array<number>(count).fill(0);
  const run = down ? ordered : ordered.slice().reverse();
  for (const layer of run) {
    let last = -1;
    for (const index of layer) {
      const segments = down ? graph.above[index] : graph.below[index];
      if (segments.length === 0) continue;
      const end = (segment: Segment): number => (down ? segment.upper : segment.lower);
      const near = segments.slice().sort((a, b) => place[end(a)] - place[end(b)]);
      const middle = (near.length - 1) / 2;
      for (let i = Math.floor(middle); i <= Math.ceil(middle); i++) {
        const segment = near[i];
        const other = end(segment);
        if (aligned[index] !== index || last >= place[other] || conflicts.has(segment)) continue;
        aligned[other] = index;
        root[index] = root[other];
        aligned[index] = root[index];
        const ends = down ? segment.upperOffset - segment.lowerOffset : segment.lowerOffset - segment.upperOffset;
        shift[index] = shift[other] + sign * ends;
        last = place[other];
      }
    }
  }

  // Blocks with the least distances to those on their left, in an order that has those first.
  const before: { block: number; room: number }[][] = Array.from({ length: count }, () => []);
  const after: { block: number; room: number }[][] = Array.from({ length: count }, () => []);
  for (const layer of ordered) {
    for (let i = 1; i < layer.length; i++) {
      const [a, b] = [layer[i - 1], layer[i]];
      const room = (left ? graph.distance(a, b) : graph.distance(b, a)) + shift[a] - shift[b];
      before[root[b]].push({ block: root[a], room });
      after[root[a]].push({ block: root[b], room });
    }
  }
  const x = new Array<number>(count).fill(0);
  const waiting = before.map((list) => list.length);
  const order: number[] = [];
  for (let i = 0; i < count; i++) if (root[i] === i && waiting[i] === 0) order.push(i);
  for (let i = 0; i < order.length; i++) {
    const block = order[i];
    let least = before[block].length === 0 ? 0 : -Infinity;
    for (const { block: other, room } of before[block]) least = Math.max(least, x[other] + room);
    x[block] = least;
    for (const { block: other } of after[block]) if (--waiting[other] === 0) order.push(other);
  }
  // Blocks move towards those on their right where there is room.
  for (let i = order.length - 1; i >= 0; i--) {
    const block = order[i];
    let most = Infinity;
    for (const { block: other, room } of after[block]) most = Math.min(most, x[other] - room);
    if (most !== Infinity) x[block] = Math.max(x[block], most);
  }
  return root.map((block, i) => sign * (x[block] + shift[i]));
}

/** The middle of everything in its layer, from left to right. */
export function placeAcross(graph: Layers): number[] {
  const conflicts = findConflicts(graph);
  const layouts = [
    placeOnce(graph, conflicts, true, true),
    placeOnce(graph, conflicts, true, false),
    placeOnce(graph, conflicts, false, true),
    placeOnce(graph, conflicts, false, false),
  ];
  const spans = layouts.map((x) => {
    let [low, high] = [Infinity, -Infinity];
    for (const value of x) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    return { low, high };
  });
  let narrowest = 0;
  spans.forEach(({ low, high }, i) => {
    if (high - low < spans[narrowest].high - spans[narrowest].low) narrowest = i;
  });
  const moves = spans.map(({ low, high }, i) =>
    i % 2 === 0 ? spans[narrowest].low - low : spans[narrowest].high - high,
  );
  return graph.position.map((_, index) => {
    const values = layouts.map((x, i) => x[index] + moves[i]).sort((a, b) => a - b);
    return (values[1] + values[2]) / 2;
  });
}
