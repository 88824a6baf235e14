// The JSON of a view, as `ingot.viewer` writes it. Every string in it is untrusted text.

/** Indexes `first, first+1, …` written as pairs of first and count. */
export type Runs = number[];

export interface View {
  schema: number;
  kind: string;
  title: string;
  reference: string;
  origin: string;
  version: string;
  target: string | null;
  facts: [string, string][];
  notes: string[];
  files: SourceFile[];
  modules: ModuleCall[];
  /** Module, file and line; -1, -1 and 0 where there is none. */
  places: [number, number, number][];
  types: TypeInfo[];
  nodes: NodeInfo[];
  /** Line i reads strings[text[i]]; links are run-length encoded: link, count, link, count, … */
  lines: { strings: string[]; text: number[]; link: number[] };
  steps: Step[];
  origins: Origin[];
  kernels: Kernel[];
  stages: StageInfo[];
  inputs: Argument[];
  outputs: Argument[];
  dims: DimInfo[];
  constraints: { text: string; place: number }[];
  stats: Record<string, Stats>;
  memory: Memory | null;
  profile: Profile | null;
  quantization: Quantization | null;
  numbers: UserNumbers[];
  weights: WeightInfo[];
  /** Another model, whole. */
  compare: View | null;
}

/** How the two files of a page are called: by their models, or by where they come from if the models are called alike. */
export function titlesOf({ title, reference, compare }: View): [string, string] {
  if (compare === null || compare.title !== title) return [title, compare?.title ?? ""];
  return [reference === "" ? `${title} (1)` : reference, compare.reference === "" ? `${title} (2)` : compare.reference];
}

/** Numbers that the user brought, by the names of what they are of; a node's name may have the path of its graph before. */
export interface UserNumbers {
  title: string;
  unit: string;
  nodes: Record<string, number>;
  modules: Record<string, number>;
  kernels: Record<string, number>;
}

/** Values that can be asked for: of a server, or of the page where `data` is there. */
export interface WeightInfo {
  dtype: string;
  shape: number[];
  /** How the bytes of a value are read: f32, i8, bool, bf16, c64, … */
  wire: string;
  /** All values, as base64, and what is said of them. */
  data?: string;
  stats?: Stats | null;
}

export interface SourceFile {
  path: string;
  name: string;
  lines: Record<string, string> | null;
  text: string[] | null;
}

export interface ModuleCall {
  call: string;
  path: string;
  type: string;
  parent: number;
}

export interface TypeInfo {
  text: string;
  dtype: string | null;
  dims: (number | string)[] | null;
  items: number[] | null;
}

export type NodeKind =
  | "input"
  | "parameter"
  | "buffer"
  | "constant"
  | "token"
  | "operator"
  | "item"
  | "size"
  | "region"
  | "call"
  | "output";

export interface NodeInfo {
  name: string;
  /** The name that other tools know it by, where that differs. */
  alias?: string;
  kind: NodeKind;
  target: string;
  text: string;
  inputs: string[];
  type: number;
  place: number;
  regions: string[];
}

export interface Argument {
  name: string;
  path: string;
  type: number | null;
}

export interface DimInfo {
  name: string;
  low: number;
  high: number | null;
  auto: boolean;
  text: string;
}

export type StageKind = "graph" | "loop_ir" | "code";

export interface StageInfo {
  name: string;
  kind: StageKind;
  group: string;
  seconds: number | null;
  changes: number | null;
  options: Record<string, string>;
  detail: string;
  check: Check | null;
  counts: Record<string, number>;
  delta: GraphDelta | StepDelta | null;
  graphs: GraphInfo[];
  /** Lines of the text before the first step, and steps as indexes in the pool. */
  head?: number;
  steps: Runs;
  texts: TextInfo[];
  /** Node, weight, node, weight, … */
  weights: number[];
}

export interface GraphInfo {
  path: string;
  caller: string | null;
  parent: string | null;
  nodes: Runs;
}

export interface GraphDelta {
  added: Runs;
  removed: Runs;
  replaced: { before: number[]; after: number[] }[];
}

export interface StepDelta {
  added: number[];
  removed: number[];
}

export interface Check {
  agrees: boolean;
  exact: boolean;
  difference: number;
  largest: number | null;
  where: string;
  text: string;
  /** Node, largest difference from the node of its name in the stage before, node, difference, … */
  nodes?: number[];
}

export interface Step {
  lines: number;
  origins: number[];
  reads: string[];
  writes: string[];
}

export interface TextInfo {
  name: string;
  language: "graph" | "loop_ir" | "c" | "cuda" | "assembly";
  lines: Runs;
  /** Of machine code: the line of the first text, from 0, or -1, and how many lines come from it; and so on. */
  sources?: number[];
}

export interface Origin {
  op: string;
  module: string;
  place: number;
  text: string;
  nodes: number[];
  inlined: number[];
}

export interface Kernel {
  name: string;
  origins: number[];
  launches: number;
  file: string;
  first: number;
  last: number;
}

export interface Histogram {
  low: number;
  high: number;
  counts: number[];
}

export interface Stats {
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  nan: number;
  inf: number;
  zeros: number;
  count: number;
  histogram: Histogram | null;
}

export interface Launch {
  kernel: number;
  origin: number;
  seconds: number;
  flops: number;
  effort: number;
  bytes: number;
  peak: number;
  /** The share of the threads' time in which they had nothing to do. */
  idle: number | null;
}

export interface Profile {
  threads: number;
  repeat: number;
  seconds: number;
  limits: { flops: number; bytes: number };
  launches: Launch[];
  /** Launch, thread (-1: the launch itself), nanoseconds of begin and end since the call began; by begin. */
  intervals: [number, number, number, number][];
}

export interface BufferInfo {
  name: string;
  offset: number | null;
  slot: number | null;
  bytes: number;
  shape: string;
  dtype: string;
  first: number;
  last: number;
  origin: number;
}

export interface Memory {
  dynamic: boolean;
  size: number | null;
  weights: number;
  steps: number;
  buffers: BufferInfo[];
  step_origins: number[];
}

export interface QuantizedLayer {
  node: number;
  name: string;
  module: string;
  operator: string;
  own: number | null;
  total: number | null;
  range_use: number | null;
  clipped: number | null;
  worth_leaving: boolean;
  /** Of the layer's result, where the numbers of the program were taken. */
  values: Histogram | null;
  /** Of the differences from the float program: of this layer alone, and with all that was lost before. */
  own_errors: Histogram | null;
  total_errors: Histogram | null;
}

export interface Quantization {
  result: number | null;
  text: string;
  layers: QuantizedLayer[];
}
