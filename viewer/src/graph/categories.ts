// Colors of nodes by what they do: a closed list, so that a legend can show it.

import type { NodeInfo } from "../data/contract";
import { shortTarget } from "./boxes";

export type Category = "io" | "state" | "product" | "normalize" | "pointwise" | "move" | "control" | "quantize" | "other";

/** Each with what it holds, and in short. */
export const CATEGORIES: [Category, string, string][] = [
  ["product", "matrix products, convolutions, attention", "products"],
  ["normalize", "reductions, normalization", "reductions"],
  ["pointwise", "pointwise", "pointwise"],
  ["move", "views, indexing, concatenation", "views"],
  ["quantize", "quantize, dequantize", "quantize"],
  ["control", "control flow, regions", "control flow"],
  ["io", "inputs, outputs", "inputs, outputs"],
  ["state", "parameters, buffers, constants", "parameters"],
  ["other", "other", "other"],
];

const PATTERNS: [RegExp, Category][] = [
  [/quantize|fake_quant|observer|_choose_qparams/, "quantize"],
  [/linear|matmul|\b(b?mm|addmm|baddbmm|einsum|dot|mv)\b|conv|attention|lstm|gru|bilinear/, "product"],
  [/norm|softmax|sum|mean|var\b|amax|amin|argm|\bprod|pool|cumsum|sort|topk|logsumexp|std\b|any\b|all\b|scan/, "normalize"],
  [/view|reshape|permute|transpose|\bt\b|expand|slice|select|cat|stack|split|chunk|index|gather|scatter|squeeze|embedding|pad|flip|roll|unbind|repeat|copy|clone|flatten|unfold|narrow|contiguous|detach|alias|tile|\bto\b|_to_copy|arange|full|zeros|ones|empty|scalar_tensor/, "move"],
];

const known = new Map<string, Category>();

export function categoryOf(info: NodeInfo): Category {
  if (info.kind === "input" || info.kind === "output" || info.kind === "token") return "io";
  if (info.kind === "parameter" || info.kind === "buffer" || info.kind === "constant") return "state";
  if (info.kind === "call" || info.kind === "region") return "control";
  if (info.kind === "item" || info.kind === "size") return "other";
  return categoryOfOperator(shortTarget(info));
}

/** What an operator does, by its name. */
export function categoryOfOperator(name: string): Category {
  let category = known.get(name);
  if (category === undefined) {
    category = PATTERNS.find(([pattern]) => pattern.test(name))?.[1] ?? (/^(cond|while_loop|autocast)/.test(name) ? "control" : "pointwise");
    known.set(name, category);
  }
  return category;
}
