// The colors of a graph: of nodes by kinds, numbers or rules, and of closed boxes by what is in them.

import type { View } from "../data/contract";
import type { GraphStage, ProgramView } from "../data/program_view";
import { matchNodes } from "../data/search";
import type { Box, BoxTree, Cell, Leaf } from "../graph/boxes";
import { CATEGORIES, categoryOf, type Category } from "../graph/categories";
import type { Scheme } from "../theme";
import { kindsOf, scaleOf, type ShownNode } from "./measures";
import { CHANGES, KINDS, kindColor, rampColor, rampStops } from "./palettes";
import { KIND, type ColorSettings } from "./settings";

export interface LegendEntry {
  label: string;
  /** A color, or the name of one of the theme's. */
  color: string;
  category?: Category;
  count: number;
  /** Whether it is a rule of the reader's. */
  rule?: boolean;
}

export interface LegendScale {
  unit: string;
  low: number;
  high: number;
  logarithmic: boolean;
  /** From low to high. */
  stops: string[];
  /** How many nodes have no number. */
  missing: number;
}

export interface Legend {
  title: string;
  entries: LegendEntry[];
  scale: LegendScale | null;
}

export interface Coloring {
  /** The color of a cell; "" for none, null for what it has without. */
  fill: (cell: Cell) => string | null;
  legend: Legend;
}

interface Shown {
  view: View;
  program: ProgramView;
  stage: GraphStage;
  tree: BoxTree;
  /** Nodes, by pool index, that a step of the loop IR concerns. */
  changed: ReadonlySet<number>;
}

/** Above this ratio of the most to the least a scale is logarithmic. */
const WIDE = 500;

export function makeColoring(shown: Shown, settings: ColorSettings, title: string, scheme: Scheme): Coloring {
  const { view, tree } = shown;
  const leaves = [...tree.cells.values()].filter((cell): cell is Leaf => cell.kind === "leaf");
  const base = baseOf(shown, settings.by, scheme, leaves);
  const rules = settings.rules.map(({ query, color }) => ({ query, color, fits: matchNodes(view, query), count: 0 }));
  const ruleOf = new Map<Leaf, string>();
  for (const leaf of leaves) {
    const rule = rules.find(({ fits }) => fits !== null && fits(leaf.info));
    if (!rule) continue;
    rule.count++;
    ruleOf.set(leaf, rule.color);
  }
  const ruled = new Map<Box, string | null>();
  /** The color of the rule that all in a box share. */
  const ruleOfBox = (box: Box): string | null => {
    let found = ruled.get(box);
    if (found === undefined) {
      const inside = new Set(box.children.map((child) => (child.kind === "leaf" ? (ruleOf.get(child) ?? null) : ruleOfBox(child))));
      found = inside.size === 1 ? [...inside][0] : null;
      ruled.set(box, found);
    }
    return found;
  };
  const fill = (cell: Cell): string | null => {
    const rule = rules.length === 0 ? null : cell.kind === "leaf" ? (ruleOf.get(cell) ?? null) : ruleOfBox(cell);
    return rule ?? base.fill(cell);
  };
  const entries = rules.flatMap(({ query, color, count }) => (query.trim() === "" ? [] : [{ label: query, color, count, rule: true }]));
  return { fill, legend: { title, entries: [...entries, ...base.entries], scale: base.scale } };
}

interface Base {
  fill: (cell: Cell) => string | null;
  entries: LegendEntry[];
  scale: LegendScale | null;
}

function baseOf(shown: Shown, by: string, scheme: Scheme, leaves: Leaf[]): Base {
  const { view, program, stage } = shown;
  const node = (leaf: Leaf): ShownNode => {
    const instance = stage.instances[leaf.instance];
    return { leaf, graph: instance ? stage.graphs[instance.graph].path : "" };
  };
  if (by === "change") return byKinds(leaves, changeKinds(shown, scheme));
  const scale = scaleOf(by, view, program, stage.info);
  if (scale !== null) {
    const { low, high, reversed } = scale;
    const logarithmic = low > 0 && high / low > WIDE;
    const at = (value: number): number => (logarithmic ? Math.log(value) : value);
    const share = (value: number): number => {
      const part = high > low ? (at(value) - at(low)) / (at(high) - at(low)) : 1;
      return reversed ? 1 - part : part;
    };
    const values = new Map(leaves.map((leaf) => [leaf, scale.of(node(leaf))]));
    const ofBox = new Map<Box, number | null>();
    const valueOf = (cell: Cell): number | null => {
      if (cell.kind === "leaf") return values.get(cell) ?? null;
      let found = ofBox.get(cell);
      if (found === undefined) {
        found = cell.kind === "module" ? scale.ofModule(cell.module) : null;
        if (found === null) {
          for (const child of cell.children) {
            const value = valueOf(child);
            if (value !== null && (found === null || (reversed ? value < found : value > found))) found = value;
          }
        }
        ofBox.set(cell, found);
      }
      return found;
    };
    const stops = [...rampStops(scheme)];
    let missing = 0;
    for (const value of values.values()) if (value === null) missing++;
    return {
      fill: (cell) => {
        const value = valueOf(cell);
        return value === null ? "" : rampColor(share(value), scheme);
      },
      entries: [],
      scale: { unit: scale.unit, low, high, logarithmic, stops: reversed ? stops.reverse() : stops, missing },
    };
  }
  const kinds = kindsOf(by, view);
  if (kinds !== null && by !== KIND) {
    const counts = new Map<number, number>();
    const numbers = new Map(leaves.map((leaf) => [leaf, kinds.of(node(leaf))]));
    for (const number of numbers.values()) counts.set(number, (counts.get(number) ?? 0) + 1);
    return byKinds(leaves, {
      of: (leaf) => {
        const number = numbers.get(leaf) ?? -1;
        return number < 0 ? null : { label: kinds.names[number], color: kindColor(number) };
      },
      ofBox: (box) => {
        const number = box.kind === "module" ? kinds.ofModule(box.module) : -1;
        return number < 0 ? null : kindColor(number);
      },
    });
  }
  const found = new Map<Category, number>();
  for (const { info } of leaves) found.set(categoryOf(info), (found.get(categoryOf(info)) ?? 0) + 1);
  const entries = CATEGORIES.flatMap(([category, , label]) => {
    const count = found.get(category);
    return count === undefined ? [] : [{ label, color: category, category, count }];
  });
  return { fill: () => null, entries, scale: null };
}

interface Labelled {
  label: string;
  color: string;
}

interface Sorted {
  of: (leaf: Leaf) => Labelled | null;
  ofBox?: (box: Box) => string | null;
}

function changeKinds({ changed }: Shown, scheme: Scheme): Sorted {
  const colors = CHANGES[scheme];
  return {
    of: (leaf) => {
      const mark = leaf.change !== "" ? leaf.change : changed.has(leaf.index) ? "replaced" : "unchanged";
      return { label: mark, color: colors[mark] };
    },
  };
}

/** At most this many are listed. */
const LISTED = KINDS;

function byKinds(leaves: readonly Leaf[], { of, ofBox: colorOfBox }: Sorted): Base {
  const counts = new Map<string, LegendEntry>();
  const colors = new Map<Leaf, string>();
  for (const leaf of leaves) {
    const found = of(leaf);
    colors.set(leaf, found?.color ?? "");
    if (found === null) continue;
    const entry = counts.get(found.label);
    if (entry) entry.count++;
    else counts.set(found.label, { ...found, count: 1 });
  }
  const ofBox = new Map<Box, string>();
  const colorOf = (cell: Cell): string => {
    if (cell.kind === "leaf") return colors.get(cell) ?? "";
    let found = ofBox.get(cell);
    if (found === undefined) {
      const inside = new Set(cell.children.map(colorOf));
      found = colorOfBox?.(cell) ?? (inside.size === 1 ? [...inside][0] : "");
      ofBox.set(cell, found);
    }
    return found;
  };
  return { fill: colorOf, entries: [...counts.values()].slice(0, LISTED), scale: null };
}
