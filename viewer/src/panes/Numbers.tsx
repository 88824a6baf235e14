// The user's numbers of a selection.

import type { JSX } from "preact";
import { useView } from "../context";
import { formatEnd } from "../colors/legend_text";
import { numberOfKernel, numberOfModule, numberOfNode, numbersOf } from "../data/numbers";
import type { NodeInfo } from "../data/contract";
import type { Linked, Seed } from "../data/program_view";

const MOST = 200;

interface Row {
  title: string;
  unit: string;
  value: number;
  /** Whose it is, where that is not what is selected. */
  of: string;
}

/** The numbers of what is selected, and those of the kernels that it ended in. */
function rowsOf({ view }: ReturnType<typeof useView>, seed: Seed, linked: Linked, node: NodeInfo | null, graph: string): Row[] {
  const rows: Row[] = [];
  for (const table of numbersOf(view)) {
    const { title, unit } = table;
    const add = (value: number | null, of: string): void => {
      if (value !== null) rows.push({ title, unit, value, of });
    };
    if (node !== null) add(numberOfNode(table, node, graph), "");
    if (seed.kind === "module") add(numberOfModule(table, view.modules[seed.module]), "");
    for (const kernel of linked.kernels) {
      const known = view.kernels[kernel];
      add(numberOfKernel(table, known), seed.kind === "kernel" ? "" : known.name);
    }
  }
  return rows;
}

export function NumbersTable({ seed, node, graph }: { seed: Seed; node: NodeInfo | null; graph: string }): JSX.Element | null {
  const state = useView();
  const linked = state.linked.value;
  if (linked === null || state.view.numbers.length === 0) return null;
  const rows = rowsOf(state, seed, linked, node, graph);
  if (rows.length === 0) return null;
  return (
    <div class="field">
      <dt>numbers</dt>
      <dd>
        <table class="pairs own-numbers">
          <tbody>
            {rows.slice(0, MOST).map(({ title, unit, value, of }, i) => (
              <tr key={i}>
                <th scope="row">{title}</th>
                <td>{formatEnd({ unit }, value)}</td>
                <td class="muted">{of}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {rows.length > MOST && <span class="muted">and {rows.length - MOST} more</span>}
      </dd>
    </div>
  );
}
