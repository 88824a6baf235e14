import { describe, expect, it } from "vitest";
import { diffLines, foldSame } from "../src/data/diff";
import { bytes, percent, scaled, seconds, value } from "../src/data/format";
import { applyDelta, GraphStage, ProgramView } from "../src/data/program_view";
import { byKernel, byModule } from "../src/data/profile_tables";
import { readView } from "../src/data/reading";
import { countRuns, decodeRuns } from "../src/data/runs";
import { parseQuery, searchStage } from "../src/data/search";
import { timeBars, type TimeBar } from "../src/data/time_bars";
import { node, stage, twoStages, view } from "./views";

describe("runs", () => {
  it("stand for indexes", () => {
    expect(decodeRuns([3, 2, 9, 1])).toEqual([3, 4, 9]);
    expect(countRuns([3, 2, 9, 1])).toBe(3);
    expect(decodeRuns([])).toEqual([]);
  });
});

describe("diff", () => {
  const shape = (before: number[], after: number[]): string =>
    diffLines(before, after)
      .map(({ change, before: b, after: a }) => (change === "same" ? `=${b}:${a}` : change === "added" ? `+${a}` : `-${b}`))
      .join(" ");

  it("finds what is the same, added and removed", () => {
    expect(shape([1, 2, 3], [1, 4, 3])).toBe("=0:0 -1 +1 =2:2");
    expect(shape([], [1])).toBe("+0");
    expect(shape([1], [])).toBe("-0");
    expect(shape([1, 2], [1, 2])).toBe("=0:0 =1:1");
  });

  it("takes unique lines as anchors and compares repeated ones exactly", () => {
    expect(shape([7, 1, 7, 2, 7], [7, 2, 7])).toBe("=0:0 -1 -2 =3:1 =4:2");
    expect(shape([5, 5, 5], [5, 5])).toBe("=0:0 =1:1 -2");
  });

  it("gives back both texts, whatever they are", () => {
    let seed = 3;
    const random = (most: number): number => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % most;
    for (let round = 0; round < 200; round++) {
      const before = Array.from({ length: random(30) }, () => random(12));
      const after = Array.from({ length: random(30) }, () => random(12));
      const lines = diffLines(before, after);
      expect(lines.filter(({ before: b }) => b >= 0).map(({ before: b }) => before[b])).toEqual(before);
      expect(lines.filter(({ after: a }) => a >= 0).map(({ after: a }) => after[a])).toEqual(after);
      for (const line of lines) if (line.change === "same") expect(before[line.before]).toBe(after[line.after]);
    }
  });

  it("compares long texts with nothing in common at once", () => {
    const before = Array.from({ length: 20_000 }, (_, i) => i);
    const lines = diffLines(before, before.map((i) => i + 50_000));
    expect(lines.length).toBe(40_000);
  });

  it("folds long stretches of equal lines", () => {
    const before = Array.from({ length: 30 }, (_, i) => i);
    const after = [...before.slice(0, 20), 99, ...before.slice(21)];
    const folded = foldSame(diffLines(before, after), 2);
    expect(folded.map((line) => (typeof line === "number" ? line : line.change[0])).join(" ")).toBe("18 s s r a s s 7");
  });
});

describe("deltas", () => {
  it("lead from one stage to the next", () => {
    const data = twoStages();
    const [first, second] = data.stages.map(({ graphs }) => graphs.flatMap(({ nodes }) => decodeRuns(nodes)));
    const delta = data.stages[1].delta as Parameters<typeof applyDelta>[1];
    expect(applyDelta(first, delta)).toEqual([...second].sort((a, b) => a - b));
    expect(applyDelta([1, 2, 3], { added: [7, 2], removed: [2, 1], replaced: [] })).toEqual([1, 3, 7, 8]);
  });

  it("are decoded with the stage", () => {
    const { changes, instances } = new GraphStage(twoStages(), twoStages().stages[1]);
    expect(changes.replacing.get(5)).toEqual([3]);
    expect(changes.replaced.get(3)).toEqual([5]);
    const clamp = instances.find(({ index }) => index === 5)!;
    expect(clamp.inputs.map((id) => instances[id].info.name)).toEqual(["linear"]);
    expect(clamp.users.map((id) => instances[id].info.name)).toEqual(["output"]);
  });

  it("keep equal nodes of two branches apart", () => {
    const data = view({
      nodes: [node("cond", [], { kind: "call", regions: ["a", "b"] }), node("arg0", [], { kind: "input" }), node("mul", ["arg0"])],
      stages: [
        stage("captured", {
          graphs: [
            { path: "", caller: null, parent: null, nodes: [0, 1] },
            { path: "a", caller: "cond", parent: "", nodes: [1, 2] },
            { path: "b", caller: "cond", parent: "", nodes: [1, 2] },
          ],
        }),
      ],
    });
    const decoded = new GraphStage(data, data.stages[0]);
    expect(decoded.byIndex.get(2)).toEqual([2, 4]);
    expect(decoded.instances[4].inputs).toEqual([3]);
    expect(decoded.graphs[2].caller).toBe(0);
  });
});

describe("links", () => {
  const program = new ProgramView(twoStages());
  const captured = program.graphStage(0);

  it("lead from a node to its line, loop and kernel", () => {
    const linked = program.link({ kind: "node", index: 2, graph: "" }, captured);
    expect([...linked.nodes]).toEqual([2]);
    expect([...linked.lines]).toEqual(["0:2"]);
    expect([...linked.origins]).toEqual([0]);
    expect([...linked.kernels]).toEqual([0]);
  });

  it("carry a node to the stage that is shown, by its place where its name is gone", () => {
    const linked = program.link({ kind: "node", index: 5, graph: "" }, captured);
    expect([...linked.nodes]).toEqual([3]);
    expect([...linked.finalNodes]).toEqual([5]);
  });

  it("lead from a line and from a kernel to nodes", () => {
    expect([...program.link({ kind: "line", file: 0, line: 3 }, captured).nodes]).toEqual([3]);
    const linked = program.link({ kind: "kernel", kernel: 0 }, captured);
    expect([...linked.nodes].sort()).toEqual([2, 3]);
    expect([...linked.lines].sort()).toEqual(["0:2", "0:3"]);
  });

  it("lead from a module to what is in it", () => {
    const linked = program.link({ kind: "module", module: 1 }, captured);
    expect([...linked.nodes]).toEqual([2]);
  });

  it("follow runs of line links", () => {
    const lines = { strings: ["a", "b"], text: [0, 1, 0], link: [-1, 1, 5, 2] };
    const other = new ProgramView(view({ lines }));
    expect([0, 1, 2, 3].map((line) => other.lineLink(line))).toEqual([-1, 5, 5, -1]);
    expect(other.lineText(1)).toBe("b");
  });
});

describe("search", () => {
  const data = twoStages();
  const captured = new GraphStage(data, data.stages[0]);
  const names = (query: string): string[] => searchStage(captured, query).map((id) => captured.instances[id].info.name);

  it("reads fields", () => {
    expect(parseQuery(" op:Linear  8]  other:x ")).toEqual([
      { field: "op", text: "linear", pattern: null },
      { field: null, text: "8]", pattern: null },
      { field: null, text: "other:x", pattern: null },
    ]);
    expect(parseQuery("op:")).toEqual([]);
    expect(parseQuery("constructor:x")).toEqual([{ field: null, text: "constructor:x", pattern: null }]);
    expect(parseQuery("op:/^Re\\D/ /[/")).toEqual([
      { field: "op", text: "/^re\\d/", pattern: /^Re\D/i },
      { field: null, text: "/[/", pattern: null },
    ]);
  });

  it("finds by operator, module, line and shape", () => {
    expect(names("op:relu")).toEqual(["relu"]);
    expect(names("module:fc")).toEqual(["linear"]);
    expect(names("line:model.py:3")).toEqual(["relu"]);
    expect(names("line:3")).toEqual(["relu"]);
    expect(names("shape:batch relu")).toEqual(["relu"]);
    expect(names("nothing")).toEqual([]);
    expect(names("op:/relu$|linear$/")).toEqual(["linear", "relu"]);
    expect(names("/^line.r$/")).toEqual(["linear"]);
    expect(names("")).toEqual([]);
  });
});

describe("numbers", () => {
  it("are short", () => {
    expect([seconds(0.0000123), seconds(0.25), seconds(null)]).toEqual(["12.3 µs", "250 ms", "–"]);
    expect([bytes(1536), bytes(12)]).toEqual(["1.50 KiB", "12 B"]);
    expect([scaled(2.5e9), scaled(12)]).toEqual(["2.50 G", "12.0"]);
    expect([percent(0.5), percent(0.012), value(1.5e-9)]).toEqual(["50%", "1.2%", "1.50e-9"]);
  });
});

describe("profile tables", () => {
  const origins = ["enc.0", "enc.1", ""].map((module) => ({ op: "linear", module, place: -1, text: "", nodes: [], inlined: [] }));
  const launch = (kernel: number, origin: number, time: number) => {
    return { kernel, origin, seconds: time, flops: 10, effort: 10, bytes: 4, peak: 0.5, idle: kernel === 0 ? 0.25 : 0.75 };
  };
  const profile = {
    threads: 1,
    repeat: 1,
    seconds: 6,
    limits: { flops: 1, bytes: 1 },
    launches: [launch(0, 0, 1), launch(0, 1, 2), launch(1, 2, 3)],
    intervals: [[0, -1, 0, 1e9], [0, 0, 0, 1e9], [1, -1, 1e9, 3e9], [1, 0, 1e9, 2e9], [2, -1, 4e9, 8e9], [2, 0, 4e9, 8e9]] as [
      number,
      number,
      number,
      number,
    ][],
  };

  it("show a call over time", () => {
    const times = timeBars(profile, origins);
    expect([times.moduleLanes, times.threadLanes, times.end]).toEqual([2, 1, 8]);
    expect(times.idle).toBeCloseTo(0.25);
    const shape = ({ lane, begin, end, launch, module }: TimeBar): string => `${lane}: ${begin}-${end} ${module || launch}`;
    expect(times.bars.map(shape)).toEqual([
      "2: 0-1 0",
      "0: 0-3 enc",
      "1: 0-1 enc.0",
      "3: 0-1 0",
      "2: 1-3 1",
      "1: 1-3 enc.1",
      "3: 1-2 1",
      "2: 4-8 2",
      "3: 4-8 2",
    ]);
    expect(timeBars({ ...profile, intervals: profile.intervals.filter(([, thread]) => thread < 0) }, origins).idle).toBeNull();
  });

  it("add up the tree of modules", () => {
    const rows = byModule(profile, origins, 2);
    expect(rows.map(({ key, seconds }) => [key, seconds])).toEqual([
      ["", 6],
      ["enc", 3],
      ["enc.0", 1],
      ["enc.1", 2],
    ]);
    expect(rows[0].peak).toBeCloseTo(0.5);
    expect(rows.map(({ idle }) => idle)).toEqual([0.5, 0.25, 0.25, 0.25]);
  });

  it("add up kernels, the longest first", () => {
    const kernels = ["a", "b"].map((name) => ({ name, origins: [], launches: 1, file: "", first: 0, last: 0 }));
    expect(byKernel(profile, kernels).map(({ key, launches }) => [key, launches])).toEqual([
      ["a", 2],
      ["b", 1],
    ]);
  });
});

describe("reading", () => {
  const page = (text: string, encoding?: string): Document => {
    const element = { textContent: text, dataset: encoding ? { encoding } : {} };
    return { getElementById: () => element } as unknown as Document;
  };

  it("takes JSON, plain and compressed", async () => {
    const data = view();
    expect((await readView(page(JSON.stringify(data)))).title).toBe("model");
    const stream = new Blob([JSON.stringify(data)]).stream().pipeThrough(new CompressionStream("gzip"));
    const packed = Buffer.from(await new Response(stream).arrayBuffer()).toString("base64");
    expect((await readView(page(packed, "gzip+base64"))).title).toBe("model");
  });

  it("says what is wrong with other data", async () => {
    await expect(readView(page("[]"))).rejects.toThrow("not a view");
    await expect(readView(page(JSON.stringify({ ...view(), schema: 9 })))).rejects.toThrow("schema 9");
  });
});
