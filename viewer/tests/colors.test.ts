import { describe, expect, test } from "vitest";
import { makeColoring } from "../src/colors/coloring";
import { choicesOf } from "../src/colors/measures";
import { contrast, kindColor, KINDS, rampColor, textOn } from "../src/colors/palettes";
import { formatRules, parseRules, readSettings } from "../src/colors/rules";
import { ProgramView } from "../src/data/program_view";
import { buildBoxes, type Box } from "../src/graph/boxes";
import type { View } from "../src/data/contract";
import { node, stage, view } from "./views";

function model(more: Partial<View> = {}): View {
  return view({
    modules: [
      { call: "", path: "", type: "Net", parent: -1 },
      { call: "fc", path: "fc", type: "torch.nn.Linear", parent: 0 },
    ],
    places: [
      [0, -1, 0],
      [1, -1, 0],
    ],
    types: [
      { text: "f32[2]", dtype: "float32", dims: [2], items: null },
      { text: "(i64[2])", dtype: null, dims: null, items: [2] },
      { text: "i64[2]", dtype: "int64", dims: [2], items: null },
    ],
    nodes: [
      node("x", [], { kind: "input", place: 0, type: 0 }),
      node("mm", ["x"], { place: 1, type: 0 }),
      node("add", ["mm"], { place: 1, type: 1 }),
      node("relu", ["add"], { place: 0, type: 0 }),
    ],
    stages: [stage("captured", { graphs: [{ path: "", parent: null, caller: null, nodes: [0, 4] }] })],
    origins: [
      { op: "mm", module: "fc", place: 1, text: "mm", nodes: [1], inlined: [2] },
      { op: "relu", module: "", place: 0, text: "relu", nodes: [3], inlined: [] },
    ],
    kernels: [
      { name: "k0", origins: [0], launches: 1, file: "", first: -1, last: -1 },
      { name: "k1", origins: [1], launches: 1, file: "", first: -1, last: -1 },
    ],
    ...more,
  });
}

function colorsOf(shown: View, by: string, rules: [string, string][] = []) {
  const program = new ProgramView(shown);
  const graph = program.graphStage(0)!;
  const tree = buildBoxes(graph, { state: true, before: null, modules: true });
  const settings = { by, rules: rules.map(([query, color]) => ({ query, color })) };
  const made = makeColoring({ view: shown, program, stage: graph, tree, changed: new Set() }, settings, by, "light");
  const leaf = (name: string): string | null => made.fill([...tree.cells.values()].find((cell) => cell.kind === "leaf" && cell.info.name === name)!);
  const box = (title: string): string | null => made.fill([...tree.boxes.values()].find((other: Box) => other.title === title)!);
  return { leaf, box, legend: made.legend };
}

describe("colors", () => {
  test("by kinds", () => {
    const types = colorsOf(model(), "dtype");
    expect(types.leaf("mm")).toBe(types.leaf("relu"));
    expect(types.leaf("add")).not.toBe(types.leaf("mm"));
    expect(types.box("fc")).toBe("");
    expect(types.legend.entries.map(({ label, count }) => [label, count])).toEqual([
      ["float32", 3],
      ["int64", 1],
    ]);
    const modules = colorsOf(model(), "module");
    expect(modules.box("fc")).toBe(modules.leaf("mm"));
    expect(modules.leaf("relu")).toBe("");
    const kind = colorsOf(model(), "kind");
    expect(kind.leaf("mm")).toBe(null);
    expect(kind.legend.entries.map(({ label }) => label)).toEqual(["products", "pointwise", "inputs, outputs"]);
  });

  test("by numbers of nodes, kernels and modules", () => {
    const own = { title: "t", unit: "ms", nodes: { relu: 1 }, modules: {}, kernels: { k0: 3 } };
    const shown = colorsOf(model({ numbers: [own] }), "numbers:t");
    expect(shown.leaf("relu")).toBe(rampColor(0, "light"));
    expect(shown.leaf("mm")).toBe(rampColor(1, "light"));
    expect(shown.leaf("add")).toBe(rampColor(1, "light"));
    expect(shown.leaf("x")).toBe("");
    expect(shown.box("fc")).toBe(rampColor(1, "light"));
    expect(shown.legend.scale).toMatchObject({ unit: "ms", low: 1, high: 3, missing: 1, logarithmic: false });
    const modules = colorsOf(model({ numbers: [{ ...own, modules: { fc: 2 }, kernels: {} }] }), "numbers:t");
    expect(modules.box("fc")).toBe(rampColor(1, "light"));
    expect(modules.leaf("mm")).toBe(rampColor(1, "light"));
    const wide = colorsOf(model({ numbers: [{ ...own, nodes: { relu: 1, mm: 1000, add: Math.sqrt(1000) } }] }), "numbers:t");
    expect(wide.legend.scale?.logarithmic).toBe(true);
    expect(wide.leaf("add")).toBe(rampColor(0.5, "light"));
  });

  test("a node has the numbers of its other name", () => {
    const nodes = [node("y", [], { alias: "/layer/Relu", type: 0 })];
    const stages = [stage("graph", { graphs: [{ path: "", parent: null, caller: null, nodes: [0, 1] }] })];
    const own = { title: "t", unit: "", nodes: { "/layer/Relu": 1 }, modules: {}, kernels: {} };
    const shown = colorsOf(model({ nodes, stages, origins: [], kernels: [], numbers: [own] }), "numbers:t");
    expect(shown.leaf("y")).toBe(rampColor(1, "light"));
  });

  test("names of the language are names like others", () => {
    const nodes = JSON.parse('{"__proto__": 1, "constructor": 2}') as Record<string, number>;
    const shown = colorsOf(model({ numbers: [{ title: "t", unit: "", nodes, modules: {}, kernels: {} }] }), "numbers:t");
    expect(shown.legend.scale).toMatchObject({ low: 1, high: 2, missing: 4 });
  });

  test("by the difference from the stage before", () => {
    const check = { agrees: true, exact: false, difference: 2, largest: 4, where: "", text: "", nodes: [1, 0, 3, 2] };
    const graphs = [{ path: "", parent: null, caller: null, nodes: [0, 4] }];
    const shown = colorsOf(model({ stages: [stage("decompose", { graphs, check })] }), "difference");
    expect([shown.leaf("mm"), shown.leaf("relu"), shown.leaf("x")]).toEqual([rampColor(0, "light"), rampColor(1, "light"), ""]);
    expect(choicesOf(model({ stages: [stage("decompose", { graphs, check })] })).map(({ name }) => name)).toContain("difference");
  });

  test("one number is the most", () => {
    const one = { title: "t", unit: "", nodes: { relu: 0 }, modules: {}, kernels: {} };
    expect(colorsOf(model({ numbers: [one] }), "numbers:t").leaf("relu")).toBe(rampColor(1, "light"));
  });

  test("a rule counts before what the graph is colored by, and the first rule before the second", () => {
    const shown = colorsOf(model(), "dtype", [
      ["op:mm", "#111111"],
      ["module:fc", "#222222"],
      ["", "#333333"],
    ]);
    expect([shown.leaf("mm"), shown.leaf("add")]).toEqual(["#111111", "#222222"]);
    expect(shown.leaf("relu")).not.toBe("#333333");
    expect(shown.legend.entries.slice(0, 2).map(({ label, count }) => [label, count])).toEqual([
      ["op:mm", 1],
      ["module:fc", 1],
    ]);
    expect(colorsOf(model(), "kind", [["module:fc", "#222222"]]).box("fc")).toBe("#222222");
  });

  test("choices are those that a view has something for", () => {
    expect(choicesOf(view()).map(({ name }) => name)).toEqual(["kind", "change"]);
    expect(choicesOf(model()).map(({ name }) => name)).toEqual(["kind", "module", "type", "dtype", "change"]);
  });

  test("rules and settings of others are read with care", () => {
    const rules = [{ query: "op:x", color: "#abcdef" }];
    expect(parseRules(formatRules(rules))).toEqual(rules);
    for (const wrong of ["", "{", "null", "3", '[["a","red"]]', '[["a"]]', '[[1,"#123456"]]', `[["${"a".repeat(300)}","#123456"]]`]) {
      expect(parseRules(wrong)).toEqual([]);
    }
    expect(parseRules(JSON.stringify(Array(50).fill(["a", "#123456"])))).toHaveLength(20);
    expect(readSettings(null)).toEqual({ by: "kind", rules: [] });
    expect(readSettings({ by: 3, rules: "x" })).toEqual({ by: "kind", rules: [] });
  });

  test("text can be read on every color, and a scale is told by its lightness alone", () => {
    const grounds = Array.from({ length: KINDS }, (_, i) => kindColor(i));
    expect(new Set(grounds).size).toBe(KINDS);
    for (const scheme of ["light", "dark"] as const) {
      const steps = Array.from({ length: 21 }, (_, i) => rampColor(i / 20, scheme));
      grounds.push(...steps);
      const far = steps.map((color) => contrast(color, scheme === "light" ? "#ffffff" : "#000000"));
      for (let i = 1; i < far.length; i++) expect(far[i]).toBeGreaterThan(far[i - 1]);
    }
    for (const ground of grounds) expect(contrast(textOn(ground), ground)).toBeGreaterThan(4.5);
  });
});
