// Parameters, buffers and constants of a stage, and every number of the one that is selected.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useView } from "../context";
import type { Stats } from "../data/contract";
import { bytes, value } from "../data/format";
import { countOf, itemSize, npyFile, readStats } from "../data/weights";
import { offerFile } from "../graph/picture";
import { ValueTable } from "./ValueTable";

const ROW = 34;
const SPARE = 6;

export function WeightsPanel(): JSX.Element {
  const state = useView();
  const { view } = state;
  const weights = state.weights.value;
  const [query, setQuery] = useState("");
  const [top, setTop] = useState(0);
  const frame = useRef<HTMLDivElement>(null);
  const listed = useMemo(() => {
    const words = query.trim().toLowerCase();
    return [...weights].filter(([node]) => nameOf(node).toLowerCase().includes(words));
  }, [weights, query]);
  function nameOf(node: number): string {
    const { target, name, kind } = view.nodes[node];
    return target === "" || kind === "constant" ? name : target;
  }
  const chosen = state.selectedWeight.value;
  const height = frame.current?.clientHeight ?? 800;
  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  const last = Math.min(listed.length, Math.ceil((top + height) / ROW) + SPARE);
  return (
    <div class="panel weights">
      <section class="card weight-list" aria-label="Weights">
        <header class="card-header">
          <h3>Weights</h3>
          <span class="card-note">{weights.size}</span>
          <input type="search" aria-label="Find a weight" placeholder="Find" value={query} onInput={(event) => setQuery(event.currentTarget.value)} />
        </header>
        <div class="weight-frame" ref={frame} tabIndex={0} role="region" aria-label="List of weights" onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
          <div style={{ height: `${listed.length * ROW}px`, position: "relative" }}>
            {listed.slice(first, last).map(([node, weight], i) => {
              const { dtype, shape, wire } = view.weights[weight];
              return (
                <button
                  type="button"
                  key={node}
                  class="weight-row"
                  aria-pressed={chosen?.node === node}
                  style={{ top: `${(first + i) * ROW}px` }}
                  onClick={() => state.select({ kind: "node", index: node, graph: "" }, false)}
                >
                  <span>{nameOf(node)}</span>
                  <span class="muted">
                    {dtype}[{shape.join(", ")}] {bytes(countOf(shape) * itemSize(wire))}
                  </span>
                </button>
              );
            })}
          </div>
          {listed.length === 0 && <p class="empty">None.</p>}
        </div>
      </section>
      {chosen === null ? (
        <p class="empty">Select a weight: here, or in the graph.</p>
      ) : (
        <section class="card weight-values" aria-label="Values">
          <header class="card-header">
            <h3>{nameOf(chosen.node)}</h3>
            <span class="card-note">
              {view.weights[chosen.weight].dtype}[{view.weights[chosen.weight].shape.join(", ")}]
            </span>
            <SaveButton weight={chosen.weight} name={nameOf(chosen.node)} />
          </header>
          <StatsLine key={`s${chosen.weight}`} weight={chosen.weight} />
          <ValueTable key={chosen.weight} weight={chosen.weight} name={nameOf(chosen.node)} />
        </section>
      )}
    </div>
  );
}

function StatsLine({ weight }: { weight: number }): JSX.Element {
  const { view } = useView();
  const [stats, setStats] = useState<Stats | null>(null);
  useEffect(() => {
    let isCurrent = true;
    // Without these the values are shown all the same.
    readStats(view, weight).then(
      (found) => isCurrent && setStats(found),
      () => undefined,
    );
    return () => void (isCurrent = false);
  }, [weight]);
  const parts: [string, string][] =
    stats === null
      ? []
      : [
          ["min", value(stats.min)],
          ["max", value(stats.max)],
          ["mean", value(stats.mean)],
          ["std", value(stats.std)],
          ["zeros", stats.zeros.toLocaleString("en")],
          ...(stats.nan > 0 ? [["nan", stats.nan.toLocaleString("en")] as [string, string]] : []),
          ...(stats.inf > 0 ? [["inf", stats.inf.toLocaleString("en")] as [string, string]] : []),
        ];
  return (
    <dl class="weight-stats" aria-label="Statistics of the values">
      {parts.map(([name, text]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{text}</dd>
        </div>
      ))}
    </dl>
  );
}

function SaveButton({ weight, name }: { weight: number; name: string }): JSX.Element {
  const info = useView().view.weights[weight];
  const file = `${name.replace(/[^\w.-]+/g, "_")}.npy`;
  const title = info.dtype === "bfloat16" ? "NumPy has no bfloat16: saved as float32, which has all of its values" : `Save as ${file}`;
  if (info.data === undefined) {
    return (
      <a class="button" href={`weights/${weight}.npy`} download={file} title={title}>
        Save as .npy
      </a>
    );
  }
  return (
    <button type="button" title={title} onClick={() => offerFile(file, npyFile(info))}>
      Save as .npy
    </button>
  );
}
