// What the graph can be colored by: kinds, or numbers on a scale.

import type { NodeInfo, StageInfo, View } from "../data/contract";
import { numberOfKernel, numberOfModule, numberOfNode, numbersOf, type NumberTable } from "../data/numbers";
import type { ProgramView } from "../data/program_view";
import type { Leaf } from "../graph/boxes";
import { KIND } from "./settings";

export interface Choice {
  name: string;
  title: string;
  /** Whether the numbers are the user's. */
  own: boolean;
}

/** A node as the graph shows it, with the path of its graph. */
export interface ShownNode {
  leaf: Leaf;
  graph: string;
}

export interface Scale {
  unit: string;
  low: number;
  high: number;
  /** Whether the least is what one looks for, as with a ratio of signal to noise. */
  reversed: boolean;
  of: (node: ShownNode) => number | null;
  /** Of a module itself, where that is known. */
  ofModule: (module: number) => number | null;
}

/** Each kind has a number, by which it gets its color in all stages. */
export interface Kinds {
  names: string[];
  of: (node: ShownNode) => number;
  /** Of a module's box; -1 where that depends on what is in it. */
  ofModule: (module: number) => number;
}

const OWN = "numbers:";

export function choicesOf(view: View): Choice[] {
  const made: Choice[] = [];
  const add = (name: string, title: string, own = false): void => void made.push({ name, title, own });
  add(KIND, "kind");
  if (view.modules.length > 1) {
    add("module", "module");
    if (view.modules.some(({ type }) => type !== "")) add("type", "module type");
  }
  if (view.types.some(({ dtype }) => dtype !== null)) add("dtype", "dtype");
  add("change", "change");
  if (view.profile && view.profile.launches.length > 0) add("time", "time");
  if (view.quantization?.layers.some(({ own, node }) => own !== null && node >= 0)) add("error", "quantization error");
  if (view.stages.some(({ check }) => (check?.nodes ?? []).length > 0)) add("difference", "numeric difference");
  if (Object.keys(view.stats).length > 0) add("largest", "largest value");
  for (const { title } of numbersOf(view)) add(OWN + title, title, true);
  return made;
}

function rangeOf(values: Iterable<number>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 0];
}

const nothing = (): null => null;

export function scaleOf(name: string, view: View, program: ProgramView, stage: StageInfo): Scale | null {
  if (name === "difference") return differenceScale(view, stage);
  if (name === "time") return timeScale(view, program);
  if (name === "error") return errorScale(view, program);
  if (name === "largest") return largestScale(view);
  const table = name.startsWith(OWN) ? numbersOf(view).find(({ title }) => title === name.slice(OWN.length)) : undefined;
  return table ? ownScale(table, view, program) : null;
}

/** The time of the launches that a node ended in. */
function timeScale(view: View, program: ProgramView): Scale {
  const times = new Map<number, number>();
  for (const { origin, seconds } of view.profile!.launches) times.set(origin, (times.get(origin) ?? 0) + seconds);
  const [low, high] = rangeOf(times.values());
  const of = ({ leaf, graph }: ShownNode): number | null => {
    let found: number | null = null;
    for (const origin of program.originsOfNode(leaf.index, graph)) {
      const time = times.get(origin);
      if (time !== undefined) found = (found ?? 0) + time;
    }
    return found;
  };
  return { unit: "s", low, high, reversed: false, of, ofModule: nothing };
}

function errorScale(view: View, program: ProgramView): Scale {
  const errors = new Map<number, number>();
  for (const { node, own } of view.quantization!.layers) if (own !== null) errors.set(node, own);
  const [low, high] = rangeOf(errors.values());
  const of = ({ leaf, graph }: ShownNode): number | null => {
    for (const node of program.inLastGraph(leaf.index, graph)) {
      const error = errors.get(node);
      if (error !== undefined) return error;
    }
    return errors.get(leaf.index) ?? null;
  };
  return { unit: "dB", low, high, reversed: true, of, ofModule: nothing };
}

/** How far a node is from the one of its name in the stage before. */
function differenceScale(view: View, stage: StageInfo): Scale {
  const pairs = (of: StageInfo): [number, number][] => {
    const nodes = of.check?.nodes ?? [];
    return nodes.flatMap((node, i) => (i % 2 === 0 ? [[node, nodes[i + 1]] as [number, number]] : []));
  };
  const here = new Map(pairs(stage));
  const [low, high] = rangeOf(view.stages.flatMap((of) => pairs(of).map(([, apart]) => apart)));
  return { unit: "", low, high, reversed: false, of: ({ leaf }) => here.get(leaf.index) ?? null, ofModule: nothing };
}

function largestScale(view: View): Scale {
  const sizes = new Map<number, number>();
  for (const [node, { min, max }] of Object.entries(view.stats)) {
    if (min !== null && max !== null) sizes.set(Number(node), Math.max(Math.abs(min), Math.abs(max)));
  }
  const [low, high] = rangeOf(sizes.values());
  return { unit: "", low, high, reversed: false, of: ({ leaf }) => sizes.get(leaf.index) ?? null, ofModule: nothing };
}

/** A node's own number, or else the largest of the kernels that it ended in, or else that of the module around it. */
function ownScale(table: NumberTable, view: View, program: ProgramView): Scale {
  const [low, high] = rangeOf([...table.nodes.values(), ...table.modules.values(), ...table.kernels.values()]);
  const ofModule = (module: number): number | null => {
    for (let at = module, steps = 0; at >= 0 && steps < 1000; at = view.modules[at].parent, steps++) {
      const found = numberOfModule(table, view.modules[at]);
      if (found !== null) return found;
    }
    return null;
  };
  const of = ({ leaf, graph }: ShownNode): number | null => {
    const own = numberOfNode(table, leaf.info, graph);
    if (own !== null) return own;
    let found: number | null = null;
    if (table.kernels.size > 0) {
      for (const origin of program.originsOfNode(leaf.index, graph)) {
        for (const kernel of program.kernelsOfOrigin(origin)) {
          const value = numberOfKernel(table, view.kernels[kernel]);
          if (value !== null && (found === null || value > found)) found = value;
        }
      }
    }
    return found ?? ofModule(view.places[leaf.info.place]?.[0] ?? -1);
  };
  return { unit: table.unit, low, high, reversed: false, of, ofModule: (module) => (module < 0 ? null : numberOfModule(table, view.modules[module])) };
}

export function kindsOf(name: string, view: View): Kinds | null {
  if (name === "dtype") return dtypeKinds(view);
  if (name === "type") return typeKinds(view);
  return name === "module" ? moduleKinds(view) : null;
}

function numbered(names: Iterable<string>): Map<string, number> {
  const found = new Map<string, number>();
  for (const name of names) if (!found.has(name)) found.set(name, found.size);
  return found;
}

function dtypeKinds(view: View): Kinds {
  const dtypeOf = (info: NodeInfo): string => {
    for (let at = info.type, steps = 0; at >= 0 && steps < 8; at = view.types[at].items?.[0] ?? -1, steps++) {
      const { dtype } = view.types[at];
      if (dtype !== null) return dtype;
    }
    return "";
  };
  const names = numbered(view.types.flatMap(({ dtype }) => (dtype === null ? [] : [dtype])));
  return { names: [...names.keys()], of: ({ leaf }) => names.get(dtypeOf(leaf.info)) ?? -1, ofModule: () => -1 };
}

const shortType = (type: string): string => type.slice(type.lastIndexOf(".") + 1);

function typeKinds(view: View): Kinds {
  const names = numbered(view.modules.flatMap(({ type }) => (type === "" ? [] : [shortType(type)])));
  const ofModule = (module: number): number => names.get(shortType(view.modules[module]?.type ?? "")) ?? -1;
  return { names: [...names.keys()], of: ({ leaf }) => ofModule(view.places[leaf.info.place]?.[0] ?? -1), ofModule };
}

const FEW = 4;

/** The modules of the first level that has some, so that layers differ, and not the whole model or what layers hold. */
function moduleKinds(view: View): Kinds {
  const depths = view.modules.map(() => 0);
  view.modules.forEach(({ parent }, i) => {
    if (parent >= 0) depths[i] = depths[parent] + 1;
  });
  const atLevel = (level: number): number[] => depths.flatMap((depth, i) => (depth === level ? [i] : []));
  let level = 1;
  while (atLevel(level).length < FEW && atLevel(level + 1).length > 0) level++;
  // A module above that level without modules in it is a kind of its own.
  const upTo = (module: number): number => {
    let at = module;
    while (at >= 0 && depths[at] > level) at = view.modules[at].parent;
    return at;
  };
  const names = numbered(view.modules.flatMap(({ path }, i) => (depths[i] === level || (depths[i] > 0 && depths[i] < level) ? [path] : [])));
  const ofModule = (inner: number): number => {
    const module = upTo(inner);
    return module < 0 ? -1 : (names.get(view.modules[module].path) ?? -1);
  };
  return { names: [...names.keys()], of: ({ leaf }) => ofModule(view.places[leaf.info.place]?.[0] ?? -1), ofModule };
}
