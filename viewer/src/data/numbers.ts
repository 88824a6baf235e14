// Numbers that the user brought, by the names of nodes, modules and kernels.

import type { Kernel, ModuleCall, NodeInfo, View } from "./contract";

export interface NumberTable {
  title: string;
  unit: string;
  nodes: Map<string, number>;
  modules: Map<string, number>;
  kernels: Map<string, number>;
}

const known = new WeakMap<View, NumberTable[]>();

export function numbersOf(view: View): NumberTable[] {
  let tables = known.get(view);
  if (!tables) {
    // Names are untrusted: a map has no names of its own.
    tables = view.numbers.map(({ title, unit, nodes, modules, kernels }) => ({
      title,
      unit,
      nodes: new Map(Object.entries(nodes)),
      modules: new Map(Object.entries(modules)),
      kernels: new Map(Object.entries(kernels)),
    }));
    known.set(view, tables);
  }
  return tables;
}

/** Of a node in a graph: names may say the graph, where two graphs have nodes of one name. */
export function numberOfNode(table: NumberTable, { name, alias }: Pick<NodeInfo, "name" | "alias">, graph: string): number | null {
  const { nodes } = table;
  return nodes.get(`${graph}/${name}`) ?? nodes.get(name) ?? (alias === undefined ? undefined : nodes.get(alias)) ?? null;
}

export function numberOfModule(table: NumberTable, { call, path }: ModuleCall): number | null {
  return table.modules.get(call) ?? table.modules.get(path) ?? null;
}

export function numberOfKernel(table: NumberTable, { name }: Kernel): number | null {
  return table.kernels.get(name) ?? null;
}

/** The tables that have numbers of kernels. */
export function kernelNumbers(view: View): NumberTable[] {
  return numbersOf(view).filter(({ kernels }) => kernels.size > 0);
}
