// Layout of nested boxes, from the inside out. Boxes with the same content share a layout, in this stage and in others.

import { layered, type Item, type Link, type Placement } from "./layered";

/** A box to lay out. Links name a child by its place, a port of the top by -1, -2, …, one of the bottom after the children. */
export interface BoxSpec {
  sizes: [number, number][];
  /** The children that are open, by place. */
  inner: Record<number, BoxSpec>;
  /** The room that the title takes. */
  header: number;
  topPorts: number;
  bottomPorts: number;
  /** from, fromPort, to, toPort for each link; ports are those of an open child, or -1. */
  links: [number, number, number, number][];
}

/** Where everything in a box lies, from its upper left corner. */
export interface BoxLayout {
  width: number;
  height: number;
  x: number[];
  y: number[];
  widths: number[];
  heights: number[];
  paths: number[][];
  topPorts: number[];
  bottomPorts: number[];
  inner: Record<number, BoxLayout>;
}

const PORT = 4;
const LARGEST_CACHE = 3000;

export class LayoutCache {
  private readonly placements = new Map<string, Placement>();
  /** How many boxes were laid out and not found. */
  computed = 0;

  layout(spec: BoxSpec): BoxLayout {
    const inner: Record<number, BoxLayout> = {};
    const sizes = spec.sizes.map((size) => [...size]);
    for (const [place, child] of Object.entries(spec.inner)) {
      const laidOut = this.layout(child);
      inner[Number(place)] = laidOut;
      sizes[Number(place)] = [laidOut.width, laidOut.height];
    }
    const items: Item[] = [];
    for (let i = 0; i < spec.topPorts; i++) items.push({ width: PORT, height: 0, port: "top" });
    for (const [width, height] of sizes) items.push({ width, height });
    for (let i = 0; i < spec.bottomPorts; i++) items.push({ width: PORT, height: 0, port: "bottom" });
    const bundles = new Map<string, number>();
    const links = spec.links.map(([from, fromPort, to, toPort]): Link => {
      const key = `${from}/${fromPort}`;
      const bundle = bundles.get(key) ?? bundles.size;
      bundles.set(key, bundle);
      const place = (end: number): number => (end < 0 ? -1 - end : spec.topPorts + end);
      return {
        from: place(from),
        to: place(to),
        fromOffset: fromPort < 0 ? 0 : inner[from].bottomPorts[fromPort] - inner[from].width / 2,
        toOffset: toPort < 0 ? 0 : inner[to].topPorts[toPort] - inner[to].width / 2,
        bundle,
      };
    });
    const placement = this.place(items, links);
    const first = spec.topPorts;
    const end = first + sizes.length;
    // What comes in through a top port crosses the title as well: it goes on where the edge outside ends.
    const shift = (path: number[], link: number): number[] => {
      const moved = path.map((value, i) => (i % 2 === 1 ? value + spec.header : value));
      return spec.links[link][0] < 0 ? [path[0], 0, ...moved] : moved;
    };
    return {
      width: placement.width,
      height: placement.height + spec.header,
      x: placement.x.slice(first, end),
      y: placement.y.slice(first, end).map((value) => value + spec.header),
      widths: sizes.map(([width]) => width),
      heights: sizes.map(([, height]) => height),
      paths: placement.paths.map(shift),
      topPorts: placement.x.slice(0, first).map((value) => value + PORT / 2),
      bottomPorts: placement.x.slice(end).map((value) => value + PORT / 2),
      inner,
    };
  }

  private place(items: Item[], links: Link[]): Placement {
    const key = JSON.stringify([
      items.map((item) => [item.width, item.height, item.port ?? ""]),
      links.map((link) => [link.from, link.to, link.fromOffset, link.toOffset, link.bundle]),
    ]);
    let placement = this.placements.get(key);
    if (!placement) {
      placement = layered(items, links);
      this.computed++;
      if (this.placements.size >= LARGEST_CACHE) this.placements.clear();
      this.placements.set(key, placement);
    }
    return placement;
  }
}
