// Times of layouts of one box: Ingot's, and those of two libraries. `npm run bench` prints the table of docs/reports/viewer.md.

import * as dagre from "@dagrejs/dagre";
import ELK from "elkjs/lib/elk.bundled.js";
import { layered } from "../src/layout/layered";

const SIZES = [15, 40, 100, 400];
const REPEAT = 5;
const WIDTH = 120;
const HEIGHT = 38;

/** A chain with skip connections, most of them short: what a module of a network looks like. */
function makeLinks(count: number): [number, number][] {
  let seed = 7;
  const random = (): number => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) / 0x7fffffff;
  const links: [number, number][] = [];
  for (let i = 1; i < count; i++) {
    links.push([i - 1, i]);
    if (random() < 0.35) links.push([Math.max(0, i - 2 - Math.floor(random() * 8)), i]);
    if (random() < 0.02) links.push([Math.floor(random() * i), i]);
  }
  return links;
}

const elk = new ELK();

async function byElk(count: number, links: [number, number][]): Promise<void> {
  await elk.layout({
    id: "root",
    layoutOptions: { "elk.algorithm": "layered", "elk.direction": "DOWN" },
    children: Array.from({ length: count }, (_, i) => ({ id: `n${i}`, width: WIDTH, height: HEIGHT })),
    edges: links.map(([from, to], i) => ({ id: `e${i}`, sources: [`n${from}`], targets: [`n${to}`] })),
  });
}

function byDagre(count: number, links: [number, number][]): void {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "TB" });
  for (let i = 0; i < count; i++) graph.setNode(`n${i}`, { width: WIDTH, height: HEIGHT });
  links.forEach(([from, to], i) => graph.setEdge(`n${from}`, `n${to}`, {}, `e${i}`));
  dagre.layout(graph);
}

function byIngot(count: number, links: [number, number][]): void {
  layered(
    Array.from({ length: count }, () => ({ width: WIDTH, height: HEIGHT })),
    links.map(([from, to]) => ({ from, to, fromOffset: 0, toOffset: 0, bundle: 0 })),
  );
}

async function median(run: () => void | Promise<void>): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i <= REPEAT; i++) {
    const start = performance.now();
    await run();
    if (i > 0) times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[Math.floor(REPEAT / 2)];
}

console.log("| nodes in the box | elkjs | @dagrejs/dagre | Ingot |\n|---|---|---|---|");
for (const count of SIZES) {
  const links = makeLinks(count);
  const row: number[] = [];
  for (const run of [byElk, byDagre, byIngot]) row.push(await median(() => run(count, links)));
  console.log(`| ${count} | ${row.map((time) => time.toFixed(0)).join(" | ")} |`);
}
