// What the page shows now. Panes read these signals; nothing else is shared between them.

import { computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { pairsOf, readSettings } from "./colors/rules";
import type { ColorSettings } from "./colors/settings";
import { ProgramView, type GraphStage, type Linked, type Seed } from "./data/program_view";
import { searchStage } from "./data/search";
import { buildBoxes, openAtFirst, type Box, type BoxTree } from "./graph/boxes";
import type { View } from "./data/contract";
import { kernelNumbers } from "./data/numbers";
import { rowsOf, type Mode } from "./text/rows";

export type Tab = "program" | "graphs" | "profile" | "memory" | "weights" | "quantization" | "dims" | "about";
export type PaneName = "outline" | "details" | "graph" | "source" | "program" | "loop_ir" | "code" | "assembly";

const FIRST_BUDGET = 44;
const MOST_REMOVED = 200;
const NAMESPACE = "ingot.view.";

/** What the browser remembers between pages, where it lets us. */
export function recall<T>(key: string, otherwise: T): T {
  try {
    const text = localStorage.getItem(NAMESPACE + key);
    return text === null ? otherwise : (JSON.parse(text) as T);
  } catch {
    return otherwise;
  }
}

export function remember(key: string, value: unknown): void {
  try {
    localStorage.setItem(NAMESPACE + key, JSON.stringify(value));
  } catch {
    // Private windows and some local files have no storage: the page works without.
  }
}

/** The tabs that a view has something for. */
function tabsOf(view: View): [Tab, string][] {
  const tabs: [Tab, string][] = [];
  if (view.stages.length > 0) tabs.push(["program", "Program"]);
  if (view.compare?.stages.some(({ kind }) => kind === "graph")) tabs.push(["graphs", "Graphs"]);
  if (view.profile || view.compare?.profile || kernelNumbers(view).length > 0) tabs.push(["profile", "Profile"]);
  if (view.memory || view.compare?.memory) tabs.push(["memory", "Memory"]);
  if (view.weights.length > 0) tabs.push(["weights", "Weights"]);
  if (view.quantization) tabs.push(["quantization", "Quantization"]);
  if (view.dims.length + view.constraints.length > 0) tabs.push(["dims", "Dims"]);
  tabs.push(["about", "About"]);
  return tabs;
}

export function hasAssembly(view: View): boolean {
  return view.stages.some(({ texts }) => texts.some(({ language }) => language === "assembly"));
}

export class ViewState {
  readonly tabs: readonly [Tab, string][];
  readonly program: ProgramView;
  readonly stage: Signal<number>;
  readonly tab: Signal<Tab>;
  readonly seed = signal<Seed | null>(null);
  readonly query = signal("");
  readonly panes: Signal<Record<PaneName, boolean>>;
  readonly showState = signal(false);
  readonly showRemoved = signal(true);
  readonly showModules = signal(true);
  /** Which boxes are open; the number tells readers that it changed. */
  readonly opened = new Map<string, boolean>();
  readonly openedVersion = signal(0);
  /** A cell of the graph to bring into view. */
  readonly reveal = signal<{ key: string; serial: number } | null>(null);
  readonly graphStage: ReadonlySignal<GraphStage | null>;
  readonly tree: ReadonlySignal<BoxTree | null>;
  readonly linked: ReadonlySignal<Linked | null>;
  readonly hits: ReadonlySignal<number[]>;
  readonly changedNodes: ReadonlySignal<Set<number>>;
  /** Nodes whose values can be asked for, in the stage that is shown. */
  readonly weights: ReadonlySignal<Map<number, number>>;
  readonly selectedWeight: ReadonlySignal<{ node: number; weight: number } | null>;
  /** Where the graph was looked at last, for when its pane comes back. */
  readonly camera = { x: 0, y: 0, scale: 1, untouched: true };
  readonly colors: Signal<ColorSettings>;
  private serial = 0;
  private readonly trees = new Map<string, BoxTree>();

  constructor(
    readonly view: View,
    /** What stands beside it has the same colors. */
    beside?: ViewState,
  ) {
    this.colors = beside?.colors ?? signal(readSettings(recall("colors", null)));
    this.program = new ProgramView(view);
    this.tabs = tabsOf(view);
    this.stage = signal(Math.max(0, this.program.graphStages[0] ?? 0));
    this.tab = signal(view.stages.length > 0 ? "program" : "about");
    const narrow = typeof innerWidth === "number" && innerWidth < 1280;
    const has = (kind: string): boolean => view.stages.some((stage) => stage.kind === kind);
    this.panes = signal({
      outline: has("graph"),
      details: true,
      graph: has("graph"),
      source: view.files.length > 0,
      program: has("graph"),
      loop_ir: has("loop_ir") && !narrow,
      code: has("code") && !narrow,
      assembly: hasAssembly(view),
    });
    this.graphStage = computed(() => this.program.graphStage(this.stage.value));
    this.tree = computed(() => this.treeOf(this.graphStage.value, this.view.stages[this.stage.value]?.kind === "graph"));
    this.linked = computed(() => {
      const seed = this.seed.value;
      return seed === null ? null : this.program.link(seed, this.graphStage.value);
    });
    this.hits = computed(() => {
      const stage = this.graphStage.value;
      return stage === null ? [] : searchStage(stage, this.query.value);
    });
    this.weights = computed(() => {
      const found = new Map<number, number>();
      const pairs = view.weights.length > 0 ? (this.graphStage.value?.info.weights ?? []) : [];
      for (let i = 0; i + 1 < pairs.length; i += 2) found.set(pairs[i], pairs[i + 1]);
      return found;
    });
    this.selectedWeight = computed(() => {
      const seed = this.seed.value;
      if (seed?.kind !== "node") return null;
      for (const node of [seed.index, ...(this.linked.value?.nodes ?? [])]) {
        const weight = this.weights.value.get(node);
        if (weight !== undefined) return { node, weight };
      }
      return null;
    });
    // On a step of the loop IR, the nodes whose loops are new.
    this.changedNodes = computed(() => {
      const found = new Set<number>();
      if (view.stages.length === 0) return found;
      for (const origin of this.program.originsOfNewSteps(this.stage.value)) {
        for (const node of view.origins[origin].nodes) found.add(node);
      }
      return found;
    });
  }

  /** Prepares the stages beside the shown one while the page has nothing else to do, so that a step finds them ready. */
  warm(): void {
    const current = this.stage.peek();
    for (const next of [current + 1, current - 1]) {
      if (next < 0 || next >= this.view.stages.length) continue;
      const { kind } = this.view.stages[next];
      if (kind === "code") continue;
      if (kind === "graph") this.treeOf(this.program.graphStage(next), true);
      rowsOf(this.program, next, 0, recall<Mode>(`mode.${kind}`, "diff"));
    }
  }

  private treeOf(stage: GraphStage | null, isShown: boolean): BoxTree | null {
    if (stage === null) return null;
    const at = this.view.stages.indexOf(stage.info);
    const previous = this.program.previousOfKind(at);
    const few = stage.changes.removed.size <= MOST_REMOVED;
    const before = this.showRemoved.value && few && previous >= 0 && isShown ? previous : -1;
    const key = `${at}/${this.showState.value}/${this.showModules.value}/${before}`;
    let tree = this.trees.get(key);
    if (!tree) {
      tree = buildBoxes(stage, {
        state: this.showState.value,
        before: before < 0 ? null : this.program.graphStage(before),
        modules: this.showModules.value,
      });
      this.trees.set(key, tree);
    }
    openAtFirst(tree, this.opened, FIRST_BUDGET);
    return tree;
  }

  isOpen = (box: Box): boolean => this.opened.get(box.key) ?? false;

  setOpen(boxes: readonly Box[], open: boolean): void {
    for (const box of boxes) this.opened.set(box.key, open);
    this.openedVersion.value++;
  }

  setColors(settings: ColorSettings): void {
    this.colors.value = settings;
    remember("colors", { by: settings.by, rules: pairsOf(settings.rules) });
  }

  step(by: number): void {
    const next = this.stage.value + by;
    if (next >= 0 && next < this.view.stages.length) this.goTo(next);
  }

  goTo(stage: number): void {
    if (stage === this.stage.value) return;
    performance.mark("ingot-step");
    this.stage.value = stage;
    if (this.tab.value !== "program") this.tab.value = "program";
  }

  /** Selects something, opens the boxes around it where asked, and brings it into view. */
  select(seed: Seed | null, reveal = true): void {
    this.seed.value = seed;
    const tree = this.tree.value;
    if (seed === null || !reveal || tree === null) return;
    const nodes = this.linked.value?.nodes ?? new Set<number>();
    const stage = this.graphStage.value;
    const first = nodes.values().next().value;
    if (first === undefined || stage === null) return;
    for (const id of stage.byIndex.get(first) ?? []) {
      const cell = tree.cells.get(id);
      if (!cell) continue;
      if (seed.kind === "node") this.openAround(cell.parent);
      this.reveal.value = { key: cell.key, serial: ++this.serial };
      return;
    }
  }

  private openAround(box: Box | null): void {
    const closed: Box[] = [];
    for (let at = box; at !== null && at.kind !== "root"; at = at.parent) if (!this.isOpen(at)) closed.push(at);
    if (closed.length > 0) this.setOpen(closed, true);
  }

  revealBox(box: Box): void {
    this.openAround(box.parent);
    this.reveal.value = { key: box.key, serial: ++this.serial };
  }

  togglePane(pane: PaneName): void {
    this.panes.value = { ...this.panes.value, [pane]: !this.panes.value[pane] };
  }
}
