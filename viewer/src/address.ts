// What the page shows as the fragment of its address: a saved or copied address shows the same again.

import { effect } from "@preact/signals";
import { formatRules, parseRules } from "./colors/rules";
import { KIND } from "./colors/settings";
import type { Seed } from "./data/program_view";
import type { Tab, ViewState } from "./state";

const TABS: Tab[] = ["program", "graphs", "profile", "memory", "weights", "quantization", "dims", "about"];
/** Browsers do not like many changes in a short time. */
const PAUSE = 300;

function seedText(seed: Seed): string {
  if (seed.kind === "node") return `node.${seed.index}.${seed.graph}`;
  if (seed.kind === "line") return `line.${seed.file}.${seed.line}`;
  if (seed.kind === "kernel" && seed.line !== undefined) return `kernel.${seed.kernel}.${seed.line}`;
  return `${seed.kind}.${seed.kind === "origin" ? seed.origin : seed.kind === "kernel" ? seed.kernel : seed.module}`;
}

/** A selection as an address has it; null where this view has no such thing. */
export function readSeed(text: string, { view }: Pick<ViewState, "view">): Seed | null {
  const [kind, first, ...rest] = text.split(".");
  const number = /^\d+$/.test(first ?? "") ? Number(first) : -1;
  const isIn = (list: readonly unknown[]): boolean => number >= 0 && number < list.length;
  if (kind === "node" && isIn(view.nodes)) return { kind, index: number, graph: rest.join(".") };
  if (kind === "line" && isIn(view.files) && /^\d+$/.test(rest[0] ?? "")) return { kind, file: number, line: Number(rest[0]) };
  if (kind === "origin" && isIn(view.origins)) return { kind, origin: number };
  if (kind === "kernel" && isIn(view.kernels)) {
    return /^\d{1,9}$/.test(rest[0] ?? "") ? { kind, kernel: number, line: Number(rest[0]) } : { kind, kernel: number };
  }
  if (kind === "module" && isIn(view.modules)) return { kind, module: number };
  return null;
}

/** Shows what the address says. */
export function readAddress(state: ViewState, fragment: string): void {
  const said = new URLSearchParams(fragment.replace(/^#/, ""));
  const stage = Number(said.get("stage") ?? -1);
  if (Number.isInteger(stage) && stage >= 0 && stage < state.view.stages.length) state.stage.value = stage;
  const tab = TABS.find((name) => name === said.get("tab"));
  if (tab && state.tabs.some(([name]) => name === tab)) state.tab.value = tab;
  state.query.value = said.get("find") ?? "";
  state.showModules.value = said.get("modules") !== "no";
  const by = said.get("color");
  if (by !== null) state.colors.value = { by, rules: parseRules(said.get("rules") ?? "[]") };
  const seed = readSeed(said.get("select") ?? "", state);
  if (seed !== null) state.select(seed);
}

/** Keeps the address as what is shown, where the browser lets us. */
export function followAddress(state: ViewState): void {
  let waiting: ReturnType<typeof setTimeout> | undefined;
  let isFirst = true;
  effect(() => {
    const said = new URLSearchParams();
    if (state.tab.value !== "program") said.set("tab", state.tab.value);
    said.set("stage", String(state.stage.value));
    if (state.seed.value !== null) said.set("select", seedText(state.seed.value));
    if (state.query.value !== "") said.set("find", state.query.value);
    if (!state.showModules.value) said.set("modules", "no");
    const { by, rules } = state.colors.value;
    said.set("color", by);
    if (rules.length > 0) said.set("rules", formatRules(rules));
    const isUsual = by === KIND && rules.length === 0;
    clearTimeout(waiting);
    if (!isFirst || !isUsual) waiting = setTimeout(() => write(`#${said}`), PAUSE);
    isFirst = false;
  });
}

function write(fragment: string): void {
  try {
    history.replaceState(null, "", fragment);
  } catch {
    // The frame of a notebook has no address of its own.
  }
}
