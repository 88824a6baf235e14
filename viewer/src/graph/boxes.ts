// The nested boxes of a stage: modules, regions, and groups of nodes where a box would hold too many.

import type { NodeInfo } from "../data/contract";
import type { GraphStage, Instance } from "../data/program_view";

export type BoxKind = "root" | "module" | "call" | "region" | "group";

export interface Leaf {
  kind: "leaf";
  key: string;
  parent: Box;
  /** The pool index of its node. */
  index: number;
  /** Its instance in the stage, -1 for a node that the step removed. */
  instance: number;
  info: NodeInfo;
  /** The module that holds this node only. */
  module: string;
  change: Mark;
}

export interface Box {
  kind: BoxKind;
  key: string;
  parent: Box | null;
  title: string;
  subtitle: string;
  /** Index of its module call, -1 for others. */
  module: number;
  /** The instance whose regions it shows, -1 for others. */
  instance: number;
  children: Cell[];
  nodes: number;
  changes: Record<Exclude<Mark, "">, number>;
}

export type Cell = Leaf | Box;
export type Mark = "" | "added" | "removed" | "replaced";

export interface BoxTree {
  root: Box;
  /** The leaf, or the box of a call, for each instance that is shown. */
  cells: Map<number, Cell>;
  boxes: Map<string, Box>;
  /** Data dependences between cells, as instances; removed nodes count from -1 down. */
  edges: [number, number][];
}

export interface BoxOptions {
  /** Shows parameters, buffers and constants as nodes. */
  state: boolean;
  /** Shows what the step removed: the stage before, or null. */
  before: GraphStage | null;
  /** Shows modules as boxes; otherwise all nodes of a graph lie side by side. */
  modules: boolean;
}

const STATE = new Set(["parameter", "buffer", "constant"]);
const MOST = 120;
const GROUP = 60;

class Builder {
  readonly tree: BoxTree;
  private readonly chains = new Map<number, number[]>();

  constructor(
    readonly stage: GraphStage,
    readonly options: BoxOptions,
  ) {
    const root = this.box("root", "root", null, "", "", -1, -1);
    this.tree = { root, cells: new Map(), boxes: new Map([["root", root]]), edges: [] };
  }

  private box(
    kind: BoxKind,
    key: string,
    parent: Box | null,
    title: string,
    subtitle: string,
    module: number,
    instance: number,
  ): Box {
    const changes = { added: 0, removed: 0, replaced: 0 };
    return { kind, key, parent, title, subtitle, module, instance, children: [], nodes: 0, changes };
  }

  private child(parent: Box, kind: BoxKind, key: string, title: string, subtitle: string, module: number): Box {
    let box = this.tree.boxes.get(key);
    if (!box) {
      box = this.box(kind, key, parent, title, subtitle, module, -1);
      this.tree.boxes.set(key, box);
      parent.children.push(box);
    }
    return box;
  }

  /** The module calls around a place, from the outside in, without the root. */
  private chain(place: number): number[] {
    const { modules, places } = this.stage.view;
    const module = places[place]?.[0] ?? -1;
    let chain = this.chains.get(module);
    if (!chain) {
      chain = [];
      for (let i = module; i >= 0 && chain.length < 200; i = modules[i].parent) {
        if (modules[i].path !== "" || modules[i].parent >= 0) chain.unshift(i);
      }
      this.chains.set(module, chain);
    }
    return chain;
  }

  isShown(info: NodeInfo): boolean {
    return info.kind !== "region" && (this.options.state || !STATE.has(info.kind));
  }

  /** The box of modules in a graph's box that a place belongs to. */
  private boxOf(outer: Box, path: string, outerChain: number[], place: number): Box {
    if (!this.options.modules) return outer;
    const { modules } = this.stage.view;
    let box = outer;
    let parentPath = outerChain.length > 0 ? modules[outerChain[outerChain.length - 1]].path : "";
    for (const module of this.chain(place)) {
      if (outerChain.includes(module)) continue;
      const { call, path: own, type } = modules[module];
      const short = parentPath !== "" && own.startsWith(`${parentPath}.`) ? own.slice(parentPath.length + 1) : own;
      const again = call.startsWith(own) ? call.slice(own.length) : "";
      box = this.child(box, "module", `${path}|${module}`, short + again, type.slice(type.lastIndexOf(".") + 1), module);
      parentPath = own;
    }
    return box;
  }

  fill(graph: number, outer: Box, outerChain: number[]): void {
    const { instances, graphs, changes } = this.stage;
    const { path, instances: ids } = graphs[graph];
    for (const id of ids) {
      const { info, index } = instances[id];
      if (!this.isShown(info)) continue;
      const parent = this.boxOf(outer, path, outerChain, info.place);
      const change: Mark = changes.added.has(index) ? "added" : changes.replacing.has(index) ? "replaced" : "";
      const regions = graphs.flatMap((inner, at) => (inner.caller === id ? [at] : []));
      if (regions.length === 0) {
        const leaf: Leaf = { kind: "leaf", key: `${path}/${info.name}`, parent, index, instance: id, info, module: "", change };
        parent.children.push(leaf);
        this.tree.cells.set(id, leaf);
        continue;
      }
      const key = `${path}/${info.name}`;
      const call = this.child(parent, "call", key, shortTarget(info), info.name, -1);
      call.instance = id;
      if (change !== "") call.changes[change]++;
      this.tree.cells.set(id, call);
      const chain = this.chain(info.place);
      for (const region of regions) {
        const inner = graphs[region].path;
        const name = inner.slice(inner.lastIndexOf(".") + 1);
        const box = regions.length === 1 ? call : this.child(call, "region", `region ${inner}`, name, "region", -1);
        if (regions.length === 1 && region !== graph) call.subtitle = name;
        this.fill(region, box, chain);
      }
    }
    this.addRemoved(path, outer, outerChain);
  }

  private addRemoved(path: string, outer: Box, outerChain: number[]): void {
    const { before } = this.options;
    const removed = this.stage.changes.removed;
    if (!before || removed.size === 0) return;
    const graph = before.graphs.findIndex((other) => other.path === path);
    if (graph < 0) return;
    for (const id of before.graphs[graph].instances) {
      const { index, info } = before.instances[id];
      if (!removed.has(index) || !this.isShown(info)) continue;
      const parent = this.boxOf(outer, path, outerChain, info.place);
      const key = `removed ${path}/${info.name}`;
      const leaf: Leaf = { kind: "leaf", key, parent, index, instance: -1, info, module: "", change: "removed" };
      parent.children.push(leaf);
      this.tree.cells.set(-1 - id, leaf);
    }
  }

  /** Boxes of one node become that node; boxes of very many become groups; counts are summed. */
  tidy(box: Box): void {
    for (const child of box.children) if (child.kind !== "leaf") this.tidy(child);
    box.children = box.children.map((child) => {
      if (child.kind !== "module" || child.children.length !== 1) return child;
      const only = child.children[0];
      if (only.kind !== "leaf") return child;
      this.tree.boxes.delete(child.key);
      only.parent = box;
      only.module = child.title;
      return only;
    });
    for (const child of box.children) {
      box.nodes += child.kind === "leaf" ? 1 : child.nodes;
      for (const mark of ["added", "removed", "replaced"] as const) {
        box.changes[mark] += child.kind === "leaf" ? Number(child.change === mark) : child.changes[mark];
      }
    }
    if (box.children.length > MOST) this.group(box);
  }

  private group(box: Box): void {
    const most = Math.max(GROUP, Math.ceil(box.children.length / GROUP));
    const size = Math.ceil(box.children.length / Math.ceil(box.children.length / most));
    const groups: Box[] = [];
    for (let start = 0; start < box.children.length; start += size) {
      const children = box.children.slice(start, start + size);
      const title = `${start + 1} – ${start + children.length}`;
      const key = `${box.key}#${start / size}`;
      const group = this.box("group", key, box, title, `${labelOf(children[0])} … ${labelOf(children[children.length - 1])}`, -1, -1);
      group.children = children;
      for (const child of children) {
        child.parent = group;
        group.nodes += child.kind === "leaf" ? 1 : child.nodes;
        for (const mark of ["added", "removed", "replaced"] as const) {
          group.changes[mark] += child.kind === "leaf" ? Number(child.change === mark) : child.changes[mark];
        }
      }
      this.tree.boxes.set(key, group);
      groups.push(group);
    }
    box.children = groups;
    if (groups.length > MOST) this.group(box);
  }

  connect(): void {
    const { edges, cells } = this.tree;
    for (const { id, users } of this.stage.instances) {
      if (!cells.has(id)) continue;
      for (const user of users) if (cells.has(user)) edges.push([id, user]);
    }
    const { before } = this.options;
    if (!before) return;
    // What was removed hangs between the nodes with the names that it was connected to.
    const now = (other: Instance): number => {
      if (cells.has(-1 - other.id)) return -1 - other.id;
      const same = this.stage.named(before.graphs[other.graph].path, other.info.name);
      return same && cells.has(same.id) ? same.id : NaN;
    };
    for (const key of cells.keys()) {
      if (key >= 0) continue;
      const { inputs, users } = before.instances[-1 - key];
      for (const input of inputs) {
        const source = now(before.instances[input]);
        if (!Number.isNaN(source)) edges.push([source, key]);
      }
      for (const user of users) {
        const sink = now(before.instances[user]);
        if (sink >= 0) edges.push([key, sink]);
      }
    }
  }
}

/** The boxes of a stage. */
export function buildBoxes(stage: GraphStage, options: BoxOptions): BoxTree {
  const builder = new Builder(stage, options);
  builder.fill(0, builder.tree.root, []);
  // Graphs that no shown node calls are boxes of their own.
  stage.graphs.forEach((graph, at) => {
    if (at === 0 || graph.instances.some((id) => builder.tree.cells.has(id)) || isReached(stage, at)) return;
    const { root, boxes } = builder.tree;
    const box: Box = {
      kind: "region",
      key: `region ${graph.path}`,
      parent: root,
      title: graph.path,
      subtitle: "region",
      module: -1,
      instance: -1,
      children: [],
      nodes: 0,
      changes: { added: 0, removed: 0, replaced: 0 },
    };
    boxes.set(box.key, box);
    root.children.push(box);
    builder.fill(at, box, []);
  });
  builder.tidy(builder.tree.root);
  builder.connect();
  return builder.tree;
}

function isReached(stage: GraphStage, graph: number): boolean {
  for (let at = graph, steps = 0; steps < 100; steps++) {
    if (at === 0) return true;
    if (at < 0 || stage.graphs[at].caller < 0) return false;
    at = stage.graphs[at].parent;
  }
  return false;
}

/** An operator without its namespace; other nodes by their kind. */
export function shortTarget(info: NodeInfo): string {
  if (info.kind === "input" || info.kind === "output" || info.kind === "token") return info.kind;
  if (info.kind === "item") return "getitem";
  const target = info.target.replace(/^(aten|prims|higher_order|ingot|quantized_decomposed)[.:]+/, "");
  return target === "" ? info.name : target;
}

export function labelOf(cell: Cell): string {
  return cell.kind === "leaf" ? cell.info.name : cell.title;
}

/** Decides which boxes are open at first: level by level, while not too much is shown. Earlier decisions stay. */
export function openAtFirst(tree: BoxTree, decided: Map<string, boolean>, budget: number): void {
  let shown = tree.root.children.length;
  let level: Box[] = tree.root.children.filter((cell): cell is Box => cell.kind !== "leaf");
  while (level.length > 0) {
    const next: Box[] = [];
    const inside = level.reduce((sum, box) => sum + (decided.get(box.key) === false ? 0 : box.children.length), 0);
    const open = shown + inside <= budget;
    for (const box of level) {
      const decision = decided.get(box.key) ?? open;
      decided.set(box.key, decision);
      if (!decision) continue;
      shown += box.children.length;
      next.push(...box.children.filter((cell): cell is Box => cell.kind !== "leaf"));
    }
    level = next;
  }
}

/** The boxes around a cell, from the inside out. */
export function ancestors(cell: Cell): Box[] {
  const found: Box[] = [];
  for (let box = cell.parent; box !== null; box = box.parent) found.push(box);
  return found;
}
