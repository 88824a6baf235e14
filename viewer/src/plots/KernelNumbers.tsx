// The user's numbers of kernels: columns beside the profile, or a table of their own.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatEnd } from "../colors/legend_text";
import { useView } from "../context";
import { kernelNumbers, type NumberTable } from "../data/numbers";
import { plural } from "../data/format";

/** As many as a window has room for, until the reader chooses. */
const FIRST = 4;

/** The columns that are shown, and what chooses them; null where no kernel has numbers. */
export function useKernelColumns(): { columns: NumberTable[]; chooser: JSX.Element | null } {
  const { view } = useView();
  const tables = kernelNumbers(view);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(() => new Set(tables.slice(0, FIRST).map(({ title }) => title)));
  const chooser =
    tables.length === 0 ? null : (
      <details class="chooser">
        <summary>
          {chosen.size} of {plural(tables.length, "number")}
        </summary>
        <div class="chooser-list" role="group" aria-label="Numbers that are shown">
          {tables.map(({ title }) => (
            <label class="check" key={title}>
              <input
                type="checkbox"
                checked={chosen.has(title)}
                onChange={(event) => {
                  const next = new Set(chosen);
                  if (event.currentTarget.checked) next.add(title);
                  else next.delete(title);
                  setChosen(next);
                }}
              />
              {title}
            </label>
          ))}
        </div>
      </details>
    );
  return { columns: tables.filter(({ title }) => chosen.has(title)), chooser };
}

export function NumberHeads({ columns }: { columns: readonly NumberTable[] }): JSX.Element {
  return (
    <>
      {columns.map(({ title, unit }) => (
        <th key={title} scope="col" class="number own-number" title={unit === "" ? title : `${title}, ${unit}`}>
          {title}
        </th>
      ))}
    </>
  );
}

export function NumberCells({ columns, kernel }: { columns: readonly NumberTable[]; kernel: string }): JSX.Element {
  return (
    <>
      {columns.map(({ title, unit, kernels }) => {
        const value = kernels.get(kernel);
        return (
          <td key={title} class="number own-number">
            {value === undefined ? "–" : formatEnd({ unit }, value)}
          </td>
        );
      })}
    </>
  );
}

/** Kernels and their numbers, for a view without a profile. */
export function KernelNumbers(): JSX.Element | null {
  const state = useView();
  const { columns, chooser } = useKernelColumns();
  const tables = kernelNumbers(state.view);
  if (chooser === null) return null;
  const kernels = state.view.kernels.flatMap(({ name }, kernel) => (tables.some((table) => table.kernels.has(name)) ? [{ name, kernel }] : []));
  const [first] = columns;
  if (first) kernels.sort((a, b) => (first.kernels.get(b.name) ?? -Infinity) - (first.kernels.get(a.name) ?? -Infinity));
  return (
    <section class="card" aria-label="Numbers of kernels">
      <header class="card-header">
        <h3>Numbers of kernels</h3>
        {chooser}
      </header>
      <div class="table-frame" tabIndex={0} role="region" aria-label="Table of kernels">
        <table class="data">
          <thead>
            <tr>
              <th scope="col">kernel</th>
              <NumberHeads columns={columns} />
            </tr>
          </thead>
          <tbody>
            {kernels.map(({ name, kernel }) => (
              <tr key={kernel}>
                <th scope="row">
                  <button type="button" class="link" onClick={() => state.select({ kind: "kernel", kernel })}>
                    {name}
                  </button>
                </th>
                <NumberCells columns={columns} kernel={name} />
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
