// Small views for tests: what Python writes, in a few lines.

import type { NodeInfo, StageInfo, View } from "../src/data/contract";

export function node(name: string, inputs: string[] = [], more: Partial<NodeInfo> = {}): NodeInfo {
  return { name, kind: "operator", target: `aten.${name}`, text: `${name} = …`, inputs, type: -1, place: -1, regions: [], ...more };
}

export function stage(name: string, more: Partial<StageInfo> = {}): StageInfo {
  return {
    name,
    kind: "graph",
    group: "passes",
    seconds: null,
    changes: null,
    options: {},
    detail: "",
    check: null,
    counts: {},
    delta: null,
    graphs: [],
    steps: [],
    texts: [],
    weights: [],
    ...more,
  };
}

export function view(more: Partial<View> = {}): View {
  return {
    schema: 1,
    kind: "view",
    title: "model",
    reference: "model",
    origin: "program",
    version: "0",
    target: null,
    facts: [],
    notes: [],
    files: [],
    modules: [],
    places: [],
    types: [],
    nodes: [],
    lines: { strings: [], text: [], link: [] },
    steps: [],
    origins: [],
    kernels: [],
    stages: [],
    inputs: [],
    outputs: [],
    dims: [],
    constraints: [],
    stats: {},
    memory: null,
    profile: null,
    quantization: null,
    numbers: [],
    weights: [],
    compare: null,
    ...more,
  };
}

/** x → linear (in module fc) → relu → output; then a pass replaces relu by clamp and adds a node. */
export function twoStages(): View {
  return view({
    files: [{ path: "model.py", name: "model.py", lines: null, text: ["def forward(x):", "    y = self.fc(x)", "    return y.relu()"] }],
    modules: [
      { call: "", path: "", type: "Net", parent: -1 },
      { call: "fc", path: "fc", type: "torch.nn.Linear", parent: 0 },
    ],
    places: [
      [1, 0, 2],
      [0, 0, 3],
    ],
    types: [{ text: "f32[batch, 8]", dtype: "float32", dims: ["batch", 8], items: null }],
    nodes: [
      node("x", [], { kind: "input", target: "x", type: 0 }),
      node("p_fc_weight", [], { kind: "parameter", target: "fc.weight" }),
      node("linear", ["x", "p_fc_weight"], { target: "aten.linear", place: 0, type: 0 }),
      node("relu", ["linear"], { target: "aten.relu", place: 1, type: 0 }),
      node("output", ["relu"], { kind: "output", target: "" }),
      node("clamp", ["linear"], { target: "aten.clamp", place: 1, type: 0 }),
      node("output", ["clamp"], { kind: "output", target: "" }),
    ],
    origins: [
      { op: "linear.default", module: "fc", place: 0, text: "linear.default  fc  model.py:2", nodes: [2], inlined: [5] },
    ],
    kernels: [{ name: "k0", origins: [0], launches: 1, file: "model.c", first: 3, last: 9 }],
    stages: [
      stage("captured", { group: "capture", graphs: [{ path: "", caller: null, parent: null, nodes: [0, 5] }] }),
      stage("lower_relu", {
        graphs: [{ path: "", caller: null, parent: null, nodes: [0, 3, 5, 2] }],
        delta: { added: [], removed: [], replaced: [{ before: [3], after: [5] }, { before: [4], after: [6] }] },
      }),
    ],
  });
}
