// A view with its indexes: stages decoded when they are asked for, and the links between nodes, lines, loops and kernels.

import type { GraphDelta, NodeInfo, StageInfo, StepDelta, View } from "./contract";
import { decodeRuns } from "./runs";

/** One node of one graph of a stage. The pool may hold one entry for equal nodes of two branches. */
export interface Instance {
  /** Its place in the stage. */
  id: number;
  /** Its index in the pool. */
  index: number;
  /** The place of its graph in the stage. */
  graph: number;
  info: NodeInfo;
  inputs: number[];
  users: number[];
}

/** What a step did to the nodes of a stage. */
export interface NodeChanges {
  added: Set<number>;
  removed: Set<number>;
  /** New nodes with those that they replace, and the reverse. */
  replacing: Map<number, number[]>;
  replaced: Map<number, number[]>;
}

export interface GraphView {
  path: string;
  caller: number;
  parent: number;
  instances: number[];
}

export class GraphStage {
  readonly instances: Instance[] = [];
  readonly graphs: GraphView[] = [];
  readonly byIndex = new Map<number, number[]>();
  readonly changes: NodeChanges;
  private readonly names: Map<string, number>[] = [];
  private places: Map<number, number[]> | null = null;

  constructor(
    readonly view: View,
    readonly info: StageInfo,
  ) {
    info.graphs.forEach((graph, at) => {
      const names = new Map<string, number>();
      const ids: number[] = [];
      for (const index of decodeRuns(graph.nodes)) {
        const info = view.nodes[index];
        const id = this.instances.length;
        this.instances.push({ id, index, graph: at, info, inputs: [], users: [] });
        names.set(info.name, id);
        ids.push(id);
        const same = this.byIndex.get(index);
        if (same) same.push(id);
        else this.byIndex.set(index, [id]);
      }
      this.names.push(names);
      this.graphs.push({ path: graph.path, caller: -1, parent: -1, instances: ids });
    });
    const paths = new Map(info.graphs.map((graph, at) => [graph.path, at]));
    info.graphs.forEach((graph, at) => {
      const parent = graph.parent === null ? -1 : (paths.get(graph.parent) ?? -1);
      if (parent < 0 || parent === at) return;
      this.graphs[at].parent = parent;
      if (graph.caller !== null) this.graphs[at].caller = this.names[parent].get(graph.caller) ?? -1;
    });
    for (const instance of this.instances) {
      for (const name of instance.info.inputs) {
        const source = this.names[instance.graph].get(name);
        if (source === undefined) continue;
        instance.inputs.push(source);
        this.instances[source].users.push(instance.id);
      }
    }
    this.changes = decodeChanges(info.delta as GraphDelta | null);
  }

  /** The instance of a name in a graph. */
  named(path: string, name: string): Instance | undefined {
    const at = this.graphs.findIndex((graph) => graph.path === path);
    const id = at < 0 ? undefined : this.names[at].get(name);
    return id === undefined ? undefined : this.instances[id];
  }

  /** Indexes of nodes with a place. */
  atPlace(place: number): number[] {
    if (this.places === null) {
      this.places = new Map();
      for (const { index, info } of this.instances) {
        const list = this.places.get(info.place);
        if (list) list.push(index);
        else this.places.set(info.place, [index]);
      }
    }
    return place < 0 ? [] : (this.places.get(place) ?? []);
  }
}

function decodeChanges(delta: GraphDelta | null): NodeChanges {
  const replacing = new Map<number, number[]>();
  const replaced = new Map<number, number[]>();
  for (const { before, after } of delta?.replaced ?? []) {
    for (const index of after) replacing.set(index, before);
    for (const index of before) replaced.set(index, after);
  }
  return {
    added: new Set(decodeRuns(delta?.added ?? [])),
    removed: new Set(decodeRuns(delta?.removed ?? [])),
    replacing,
    replaced,
  };
}

/** The nodes of a stage by those of the stage before and what changed, sorted: what a delta means. */
export function applyDelta(previous: readonly number[], delta: GraphDelta): number[] {
  const changes = decodeChanges(delta);
  const kept = previous.filter((index) => !changes.removed.has(index) && !changes.replaced.has(index));
  return [...kept, ...changes.added, ...changes.replacing.keys()].sort((a, b) => a - b);
}

/** What is selected: the thing that the user chose, from which the rest follows. */
export type Seed =
  | { kind: "node"; index: number; graph: string }
  | { kind: "line"; file: number; line: number }
  | { kind: "origin"; origin: number }
  /** With a line of the C text, from 0, where one was chosen. */
  | { kind: "kernel"; kernel: number; line?: number }
  | { kind: "module"; module: number };

/** What a selection means in each pane. */
export interface Linked {
  /** Nodes of the graph stage that is shown. */
  nodes: Set<number>;
  /** Nodes of the last graph stage. */
  finalNodes: Set<number>;
  /** Lines as file index and line number, separated by a colon. */
  lines: Set<string>;
  origins: Set<number>;
  kernels: Set<number>;
}

export class ProgramView {
  readonly graphStages: number[] = [];
  readonly loopStages: number[] = [];
  readonly codeStages: number[] = [];
  private readonly decoded = new Map<number, GraphStage>();
  private readonly ofNode = new Map<number, number[]>();
  private readonly kernelsOf = new Map<number, number[]>();
  private readonly originsAt = new Map<number, number[]>();

  private readonly links: Int32Array;

  constructor(readonly view: View) {
    this.links = new Int32Array(view.lines.text.length).fill(-1);
    let at = 0;
    for (let i = 0; i + 1 < view.lines.link.length; i += 2) {
      this.links.fill(view.lines.link[i], at, at + view.lines.link[i + 1]);
      at += view.lines.link[i + 1];
    }
    view.stages.forEach((stage, i) => {
      if (stage.kind === "graph") this.graphStages.push(i);
      else if (stage.kind === "loop_ir") this.loopStages.push(i);
      else this.codeStages.push(i);
    });
    const append = (map: Map<number, number[]>, key: number, value: number): void => {
      const list = map.get(key);
      if (!list) map.set(key, [value]);
      else if (!list.includes(value)) list.push(value);
    };
    view.origins.forEach((origin, i) => {
      for (const node of origin.nodes) append(this.ofNode, node, i);
      for (const node of origin.inlined) append(this.ofNode, node, i);
      if (origin.place >= 0) append(this.originsAt, origin.place, i);
    });
    view.kernels.forEach((kernel, i) => {
      for (const origin of kernel.origins) append(this.kernelsOf, origin, i);
    });
  }

  /** The graph of a stage, or of the last graph stage before it; null where a view has none. */
  graphStage(stage: number): GraphStage | null {
    let found = -1;
    for (const i of this.graphStages) if (i <= stage || found < 0) found = i;
    if (found < 0) return null;
    let decoded = this.decoded.get(found);
    if (!decoded) {
      decoded = new GraphStage(this.view, this.view.stages[found]);
      this.decoded.set(found, decoded);
    }
    return decoded;
  }

  get lastGraph(): GraphStage | null {
    return this.graphStages.length === 0 ? null : this.graphStage(this.view.stages.length - 1);
  }

  /** The stage of a kind to show at a stage: itself, or the last one. */
  stageOfKind(kind: "graph" | "loop_ir" | "code", stage: number): number {
    if (this.view.stages[stage]?.kind === kind) return stage;
    const list = kind === "graph" ? this.graphStages : kind === "loop_ir" ? this.loopStages : this.codeStages;
    if (list.length === 0) return -1;
    if (kind === "graph") return list[list.length - 1] < stage ? list[list.length - 1] : list[0];
    return list[list.length - 1];
  }

  /** The stage of the same kind before a stage, or -1. */
  previousOfKind(stage: number): number {
    const kind = this.view.stages[stage]?.kind;
    for (let i = stage - 1; i >= 0; i--) if (this.view.stages[i].kind === kind) return i;
    return -1;
  }

  kernelsOfOrigin(origin: number): number[] {
    return this.kernelsOf.get(origin) ?? [];
  }

  /** The text of a line of the pool. */
  lineText(line: number): string {
    return this.view.lines.strings[this.view.lines.text[line]] ?? "";
  }

  /** What a line of the pool links to: a node, an origin or a kernel, by the language of its text; -1 for nothing. */
  lineLink(line: number): number {
    return this.links[line] ?? -1;
  }

  /** The origins of the steps that are new in a stage of the loop IR. */
  originsOfNewSteps(stage: number): Set<number> {
    const info = this.view.stages[stage];
    const found = new Set<number>();
    if (info.kind !== "loop_ir" || info.delta === null) return found;
    const steps = decodeRuns(info.steps);
    for (const place of (info.delta as StepDelta).added) {
      for (const origin of this.view.steps[steps[place]]?.origins ?? []) found.add(origin);
    }
    return found;
  }

  /** The nodes of `target` that a node of another stage became or came from. */
  private carry(index: number, graph: string, target: GraphStage): number[] {
    if (target.byIndex.has(index)) return [index];
    const info = this.view.nodes[index];
    const named = target.named(graph, info.name);
    if (named) return [named.index];
    return target.atPlace(info.place);
  }

  /** What belongs to a seed in every pane, with the graph stage `shown`. */
  link(seed: Seed, shown: GraphStage | null): Linked {
    const linked: Linked = {
      nodes: new Set(),
      finalNodes: new Set(),
      lines: new Set(),
      origins: new Set(),
      kernels: new Set(),
    };
    const last = this.lastGraph;
    const { view } = this;
    if (seed.kind === "node") {
      if (shown) for (const node of this.carry(seed.index, seed.graph, shown)) linked.nodes.add(node);
      if (last) for (const node of this.carry(seed.index, seed.graph, last)) linked.finalNodes.add(node);
      this.addLine(linked, view.nodes[seed.index].place);
      this.originsOfNodes(linked, seed.index);
    } else if (seed.kind === "line" || seed.kind === "module") {
      const fits =
        seed.kind === "line"
          ? (place: number): boolean => {
              const [, file, line] = view.places[place] ?? [-1, -1, 0];
              return file === seed.file && line === seed.line;
            }
          : (place: number): boolean => this.isInside(view.places[place]?.[0] ?? -1, seed.module);
      for (const [stage, into] of [
        [shown, linked.nodes],
        [last, linked.finalNodes],
      ] as const) {
        for (const { index, info } of stage?.instances ?? []) if (info.place >= 0 && fits(info.place)) into.add(index);
      }
      view.origins.forEach((origin, i) => {
        if (origin.place >= 0 && fits(origin.place)) linked.origins.add(i);
      });
      if (seed.kind === "line") linked.lines.add(`${seed.file}:${seed.line}`);
      else for (const node of linked.nodes) this.addLine(linked, view.nodes[node].place);
      this.originsOfNodes(linked, -1);
    } else {
      const origins = seed.kind === "origin" ? [seed.origin] : (view.kernels[seed.kernel]?.origins ?? []);
      for (const origin of origins) {
        linked.origins.add(origin);
        const { nodes, inlined, place } = view.origins[origin];
        this.addLine(linked, place);
        for (const node of [...nodes, ...inlined]) {
          linked.finalNodes.add(node);
          this.addLine(linked, view.nodes[node].place);
          if (shown) for (const carried of this.carryFromLast(node, shown)) linked.nodes.add(carried);
        }
        if (nodes.length === 0 && shown) for (const node of shown.atPlace(place)) linked.nodes.add(node);
      }
    }
    if (seed.kind === "kernel") linked.kernels.add(seed.kernel);
    else for (const origin of linked.origins) for (const kernel of this.kernelsOfOrigin(origin)) linked.kernels.add(kernel);
    return linked;
  }

  /** The nodes of the last graph that a node became. */
  inLastGraph(index: number, graph: string): number[] {
    const last = this.lastGraph;
    return last === null ? [] : this.carry(index, graph, last);
  }

  /** The loops that compute a node, or that come from its line. */
  originsOfNode(index: number, graph: string): number[] {
    const found = new Set(this.inLastGraph(index, graph).flatMap((node) => this.ofNode.get(node) ?? []));
    return found.size > 0 ? [...found] : (this.originsAt.get(this.view.nodes[index].place) ?? []);
  }

  /** Whether a module call is another one or inside it. */
  isInside(module: number, outer: number): boolean {
    for (let i = module, steps = 0; i >= 0 && steps < 1000; i = this.view.modules[i].parent, steps++) {
      if (i === outer) return true;
    }
    return false;
  }

  private carryFromLast(index: number, shown: GraphStage): number[] {
    const last = this.lastGraph;
    const id = last?.byIndex.get(index)?.[0];
    const graph = id === undefined || !last ? "" : last.graphs[last.instances[id].graph].path;
    return this.carry(index, graph, shown);
  }

  private originsOfNodes(linked: Linked, seed: number): void {
    for (const node of linked.finalNodes) for (const i of this.ofNode.get(node) ?? []) linked.origins.add(i);
    if (linked.origins.size === 0 && seed >= 0) {
      for (const i of this.originsAt.get(this.view.nodes[seed].place) ?? []) linked.origins.add(i);
    }
  }

  private addLine(linked: Linked, place: number): void {
    const found = this.view.places[place];
    if (found && found[1] >= 0) linked.lines.add(`${found[1]}:${found[2]}`);
  }
}
