// The same thing in another view: what a selection in one of two graphs means in the other.

import type { View } from "./contract";
import type { GraphStage, Linked, Seed } from "./program_view";

/** A graph that is shown, and what is selected in it. */
export interface Shown {
  view: View;
  stage: GraphStage | null;
  seed: Seed | null;
  linked: Linked | null;
}

/** What to select in another graph: the module of the same path; the node of the same name, or else the first one of the
 * same module and operator. Null where there is none. */
export function findCounterpart(from: Shown, to: Shown): Seed | null {
  const { seed, stage, linked } = from;
  if (seed === null || stage === null || to.stage === null) return null;
  if (seed.kind === "module") {
    const path = from.view.modules[seed.module].path;
    const module = to.view.modules.findIndex((other) => other.path === path);
    return module < 0 ? null : { kind: "module", module };
  }
  const first = linked?.nodes.values().next().value;
  if (first === undefined) return null;
  const node = from.view.nodes[first];
  const pathOf = (view: View, place: number): string => view.modules[view.places[place]?.[0]]?.path ?? "";
  const path = pathOf(from.view, node.place);
  const found =
    to.stage.instances.find(({ info }) => info.name === node.name && info.target === node.target) ??
    to.stage.instances.find(({ info }) => info.target === node.target && pathOf(to.view, info.place) === path);
  if (!found) return null;
  return { kind: "node", index: found.index, graph: to.stage.graphs[found.graph].path };
}
