import { describe, expect, it } from "vitest";
import { GraphStage } from "../src/data/program_view";
import { buildBoxes, openAtFirst, type Box, type Cell } from "../src/graph/boxes";
import { categoryOf } from "../src/graph/categories";
import { cellAt } from "../src/graph/painter";
import { prepareScene, type Scene } from "../src/graph/scene";
import { assignLayers, findBackward, layered } from "../src/layout/layered";
import { LayoutCache } from "../src/layout/nested";
import { liveBytes } from "../src/plots/MemoryPanel";
import { linear, logarithmic } from "../src/plots/scales";
import { tokenize } from "../src/text/tokens";
import { node, stage, twoStages, view } from "./views";

const link = (from: number, to: number) => ({ from, to, fromOffset: 0, toOffset: 0, bundle: from });
const box = (width = 80, height = 30) => ({ width, height });
const measure = (text: string): number => text.length * 7;

describe("layers", () => {
  it("follow the longest path, and sources stay beside their users", () => {
    expect(assignLayers(4, [[0, 1], [1, 2], [3, 2]])).toEqual([0, 1, 2, 1]);
  });

  it("find links that close a cycle", () => {
    expect(findBackward(3, [link(0, 1), link(1, 2), link(2, 0)])).toEqual([false, false, true]);
  });
});

function expectApart(items: { width: number; height: number }[], { x, y }: { x: number[]; y: number[] }): void {
  for (let a = 0; a < items.length; a++) {
    for (let b = a + 1; b < items.length; b++) {
      const apart =
        x[a] + items[a].width <= x[b] || x[b] + items[b].width <= x[a] || y[a] + items[a].height <= y[b] || y[b] + items[b].height <= y[a];
      expect(apart, `${a} and ${b} overlap`).toBe(true);
    }
  }
}

describe("layered layout", () => {
  it("puts a chain in one column", () => {
    const { x, y } = layered([box(), box(), box()], [link(0, 1), link(1, 2)]);
    expect(new Set(x).size).toBe(1);
    expect(y[0] < y[1] && y[1] < y[2]).toBe(true);
  });

  it("keeps a long edge straight beside a chain", () => {
    const items = Array.from({ length: 6 }, () => box());
    const { paths } = layered(items, [link(0, 1), link(1, 2), link(2, 3), link(3, 4), link(4, 5), link(0, 5)]);
    const bends = paths[5].filter((_, i) => i % 2 === 0).slice(1, -1);
    expect(new Set(bends).size).toBe(1);
  });

  it("never lets items overlap, and gives the same result twice", () => {
    let seed = 11;
    const random = (most: number): number => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % most;
    for (let round = 0; round < 60; round++) {
      const count = 2 + random(40);
      const items = Array.from({ length: count }, () => box(20 + random(150), 20 + random(200)));
      const links = Array.from({ length: random(count * 2) }, () => link(random(count), random(count)));
      const placed = layered(items, links);
      expectApart(items, placed);
      expect(layered(items, links)).toEqual(placed);
      for (const [i, { from, to }] of links.entries()) {
        if (from === to) expect(placed.paths[i]).toEqual([]);
        else expect(placed.paths[i].every(Number.isFinite)).toBe(true);
      }
    }
  });

  it("lays out nothing and single items", () => {
    expect(layered([], []).paths).toEqual([]);
    expect(layered([box()], []).x).toEqual([14]);
  });

  it("puts ports on the borders", () => {
    const { y, height } = layered(
      [{ width: 4, height: 0, port: "top" }, box(), { width: 4, height: 0, port: "bottom" }],
      [link(0, 1), link(1, 2)],
    );
    expect([y[0], y[2]]).toEqual([0, height]);
  });
});

describe("boxes", () => {
  const data = twoStages();

  it("hide parameters, and show a module of one node as that node", () => {
    const tree = buildBoxes(new GraphStage(data, data.stages[0]), { state: false, before: null, modules: true });
    expect(tree.root.children.map((cell) => cell.key)).toEqual(["/x", "/linear", "/relu", "/output"]);
    const [, linearLeaf] = tree.root.children;
    expect(linearLeaf.kind === "leaf" && linearLeaf.module).toBe("fc");
    expect(tree.edges).toEqual([[0, 2], [2, 3], [3, 4]]);
  });

  it("leave modules out where they are not asked for", () => {
    const nested = view({
      modules: [
        { call: "a", path: "a", type: "m:A", parent: -1 },
        { call: "a.b", path: "a.b", type: "m:B", parent: 0 },
      ],
      places: [[-1, -1, 0], [0, -1, 0], [1, -1, 0]],
      nodes: [node("x", [], { kind: "input" }), ...["p", "q", "r", "s"].map((name, i) => node(name, ["x"], { place: 1 + (i % 2) }))],
      stages: [stage("one", { graphs: [{ path: "", caller: null, parent: null, nodes: [0, 5] }] })],
    });
    const graph = new GraphStage(nested, nested.stages[0]);
    const boxed = buildBoxes(graph, { state: true, before: null, modules: true });
    expect(boxed.root.children.map((cell) => cell.kind)).toEqual(["leaf", "module"]);
    const flat = buildBoxes(graph, { state: true, before: null, modules: false });
    expect(flat.root.children.map((cell) => cell.key)).toEqual(["/x", "/p", "/q", "/r", "/s"]);
    expect(flat.edges).toEqual(boxed.edges);
  });

  it("mark what a step replaced", () => {
    const tree = buildBoxes(new GraphStage(data, data.stages[1]), { state: true, before: null, modules: true });
    const marks = [...tree.cells.values()].map((cell: Cell) => (cell.kind === "leaf" ? cell.change : ""));
    expect(marks).toEqual(["", "", "", "replaced", "replaced"]);
    expect(tree.root.changes).toEqual({ added: 0, removed: 0, replaced: 2 });
  });

  it("show removed nodes between those that they were connected to", () => {
    const before = view({
      nodes: [node("x", [], { kind: "input" }), node("noop", ["x"]), node("add", ["noop"]), node("add", ["x"])],
      stages: [
        stage("a", { graphs: [{ path: "", caller: null, parent: null, nodes: [0, 3] }] }),
        stage("b", {
          graphs: [{ path: "", caller: null, parent: null, nodes: [0, 1, 3, 1] }],
          delta: { added: [], removed: [1, 1], replaced: [{ before: [2], after: [3] }] },
        }),
      ],
    });
    const first = new GraphStage(before, before.stages[0]);
    const tree = buildBoxes(new GraphStage(before, before.stages[1]), { state: false, before: first, modules: true });
    const removed = tree.cells.get(-2) as Cell;
    expect(removed.kind === "leaf" && removed.change).toBe("removed");
    expect(tree.edges).toEqual([[0, 1], [0, -2], [-2, 1]]);
  });

  it("group very many nodes, and open level by level", () => {
    const nodes = Array.from({ length: 1000 }, (_, i) => node(`add_${i}`, i > 0 ? [`add_${i - 1}`] : []));
    const many = view({ nodes, stages: [stage("a", { graphs: [{ path: "", caller: null, parent: null, nodes: [0, 1000] }] })] });
    const tree = buildBoxes(new GraphStage(many, many.stages[0]), { state: false, before: null, modules: true });
    expect(tree.root.children.length).toBeLessThan(40);
    expect(tree.root.nodes).toBe(1000);
    const decided = new Map<string, boolean>();
    openAtFirst(tree, decided, 44);
    expect([...decided.values()].every((open) => !open)).toBe(true);
    decided.set("root#0", true);
    openAtFirst(tree, decided, 44);
    expect(decided.get("root#0")).toBe(true);
  });

  it("nest the regions of a call", () => {
    const data = view({
      nodes: [
        node("x", [], { kind: "input" }),
        node("true_graph", [], { kind: "region", target: "true_graph" }),
        node("cond", ["x", "true_graph"], { kind: "call", target: "cond", regions: ["true_graph", "false_graph"] }),
        node("arg0", [], { kind: "input" }),
        node("mul", ["arg0"]),
      ],
      stages: [
        stage("a", {
          graphs: [
            { path: "", caller: null, parent: null, nodes: [0, 3] },
            { path: "true_graph", caller: "cond", parent: "", nodes: [3, 2] },
            { path: "false_graph", caller: "cond", parent: "", nodes: [3, 2] },
          ],
        }),
      ],
    });
    const tree = buildBoxes(new GraphStage(data, data.stages[0]), { state: false, before: null, modules: true });
    const call = tree.boxes.get("/cond") as Box;
    expect(call.children.map((cell) => (cell as Box).title)).toEqual(["true_graph", "false_graph"]);
    expect(tree.root.nodes).toBe(5);
  });
});

describe("scene", () => {
  const nodes = [
    node("x", [], { kind: "input" }),
    ...["a", "b", "c"].map((name, i) => node(name, [i === 0 ? "x" : ["a", "b"][i - 1]], { place: i === 2 ? 1 : 0 })),
    node("d", ["c", "a"], { place: 1 }),
  ];
  const data = view({
    nodes,
    modules: [
      { call: "", path: "", type: "Net", parent: -1 },
      { call: "m", path: "m", type: "M", parent: 0 },
    ],
    places: [
      [1, -1, 0],
      [0, -1, 0],
    ],
    stages: [stage("s", { graphs: [{ path: "", caller: null, parent: null, nodes: [0, 5] }] })],
  });
  const tree = buildBoxes(new GraphStage(data, data.stages[0]), { state: false, before: null, modules: true });
  const scene = (open: boolean): Scene => {
    const { spec, build } = prepareScene(tree, () => open, data.types, measure);
    return build(new LayoutCache().layout(spec));
  };

  it("shows a closed box as one cell with merged edges", () => {
    const closed = scene(false);
    expect(closed.cells.map(({ cell }) => cell.key)).toEqual(["/x", "|1", "/c", "/d"]);
    expect(closed.edges.length).toBe(4);
    expect(closed.shownFor(1)?.cell.key).toBe("|1");
  });

  it("shows an open box around its nodes, with edges through its borders", () => {
    const open = scene(true);
    const [outer, inner] = [open.byKey.get("|1")!, open.byKey.get("/a")!];
    expect(inner.x >= outer.x && inner.x + inner.width <= outer.x + outer.width).toBe(true);
    expect(inner.y >= outer.y && inner.y + inner.height <= outer.y + outer.height).toBe(true);
    // x → box, border → a, a → b, b → border, a → border, border → c, border → d, c → d
    expect(open.edges.length).toBe(8);
    expect(open.edges.filter(({ head }) => head).length).toBe(5);
    expect(cellAt(open, inner.x + 2, inner.y + 2)?.cell.key).toBe("/a");
    expect(cellAt(open, -50, -50)).toBeNull();
  });

  it("lays out equal boxes once", () => {
    const cache = new LayoutCache();
    const { spec } = prepareScene(tree, () => true, data.types, measure);
    cache.layout(spec);
    const { computed } = cache;
    cache.layout(spec);
    expect(cache.computed).toBe(computed);
  });
});

describe("text and plots", () => {
  it("colors words without losing any", () => {
    for (const [language, line] of [
      ["python", '    y = f"a{b}" if x else None  # why'],
      ["c", 'for (int i = 0; i < n; ++i) { /* "a" */ x[i] = 1.5f; } // end'],
      ["loop_ir", "store o1[16*i0 + i1] = %1  // relu"],
      ["graph", "relu: f32[4, 8] = aten.relu(x)"],
    ] as const) {
      expect(tokenize(line, language).map(({ text }) => text).join("")).toBe(line);
    }
    const kinds = (line: string) => tokenize(line, "c").map(({ kind }) => kind);
    expect(kinds("// int")).toEqual(["comment"]);
    expect(tokenize("x".repeat(5000), "c").length).toBe(1);
  });

  it("has a category for every node", () => {
    expect(categoryOf(node("l", [], { target: "aten.linear" }))).toBe("product");
    expect(categoryOf(node("s", [], { target: "aten._softmax" }))).toBe("normalize");
    expect(categoryOf(node("v", [], { target: "aten.view" }))).toBe("move");
    expect(categoryOf(node("q", [], { target: "quantized_decomposed.quantize_per_tensor" }))).toBe("quantize");
    expect(categoryOf(node("g", [], { target: "aten.gelu" }))).toBe("pointwise");
  });

  it("has round ticks", () => {
    expect(linear(0, 10, 0, 100).ticks).toEqual([0, 2, 4, 6, 8, 10]);
    expect(linear(0, 1 << 20, 0, 100, 4, true).ticks[1]).toBe(1 << 18);
    expect(logarithmic(0.5, 200, 0, 100).ticks).toEqual([1, 10, 100]);
  });

  it("knows how much memory is live", () => {
    const buffer = (bytes: number, first: number, last: number) => {
      return { name: "t", offset: 0, slot: null, bytes, shape: "", dtype: "", first, last, origin: -1 };
    };
    const memory = { dynamic: false, size: 8, weights: 0, steps: 4, buffers: [buffer(4, 0, 1), buffer(8, 1, 3)], step_origins: [] };
    expect(liveBytes(memory)).toEqual([4, 12, 8, 8]);
  });
});
