// What quantization costs, layer by layer.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useView } from "../context";
import type { Histogram, QuantizedLayer } from "../data/contract";
import { percent, significant, value } from "../data/format";
import { Histogram as HistogramPlot } from "./Histogram";

type Order = "program" | "own" | "total";

const FLOOR = 0;
const CEILING = 60;

/** A bar for a signal-to-noise ratio: longer is worse, so that what hurts is seen first. */
function NoiseBar({ decibels, label }: { decibels: number | null; label: string }): JSX.Element {
  if (decibels === null) return <span class="muted">exact</span>;
  const loss = Math.min(1, Math.max(0.01, (CEILING - decibels) / (CEILING - FLOOR)));
  const grade = decibels < 15 ? "bad" : decibels < 25 ? "fair" : "good";
  return (
    <span class="noise" role="img" aria-label={`${label} ${significant(decibels)} decibels`}>
      <span class="bar">
        <span class={`fill-${grade}`} style={{ width: `${loss * 100}%` }} />
      </span>
      <span class="number">{significant(decibels)} dB</span>
    </span>
  );
}

function compareLayers(order: Order): (a: QuantizedLayer, b: QuantizedLayer) => number {
  if (order === "own") return (a, b) => (a.own ?? Infinity) - (b.own ?? Infinity);
  return (a, b) => (a.total ?? Infinity) - (b.total ?? Infinity);
}

export function QuantizationPanel(): JSX.Element | null {
  const state = useView();
  const { quantization } = state.view;
  const [order, setOrder] = useState<Order>("program");
  if (!quantization) return null;
  const layers = [...quantization.layers];
  if (order !== "program") layers.sort(compareLayers(order));
  const worth = layers.filter((layer) => layer.worth_leaving).length;
  const choose = (layer: QuantizedLayer): void => {
    if (layer.node >= 0) state.select({ kind: "node", index: layer.node, graph: "" });
  };
  const hasErrors = layers.some((layer) => layer.own_errors || layer.total_errors);
  const hasValues = layers.some((layer) => layer.values);
  // One scale for all layers would hide the small ones: each histogram says its range.
  const histogram = (data: Histogram | null, label: string, symmetric: boolean): JSX.Element | null => {
    if (!data) return <span class="muted">{symmetric ? "none" : "–"}</span>;
    return <HistogramPlot small data={data} label={label} caption={symmetric ? `±${value(data.high)}` : `${value(data.low)} … ${value(data.high)}`} />;
  };
  return (
    <div class="panel quantization">
      <dl class="summary">
        <div>
          <dt>result, signal to noise</dt>
          <dd class="big">{quantization.text}</dd>
        </div>
        <div>
          <dt>layers</dt>
          <dd>{layers.length}</dd>
        </div>
        <div>
          <dt>worth leaving in float</dt>
          <dd>{worth}</dd>
        </div>
      </dl>
      <section class="card" aria-label="Error of each layer">
        <header class="card-header">
          <h3>Error of each layer</h3>
          <span class="card-note">signal to noise; a longer bar is a larger error</span>
          <span class="segmented" role="group" aria-label="Order">
            {(
              [
                ["program", "program order"],
                ["own", "worst by itself"],
                ["total", "worst in total"],
              ] as const
            ).map(([name, title]) => (
              <button key={name} type="button" aria-pressed={order === name} onClick={() => setOrder(name)}>
                {title}
              </button>
            ))}
          </span>
        </header>
        <div class="table-frame" tabIndex={0} role="region" aria-label="Table of layers">
          <table class="data">
            <thead>
              <tr>
                <th scope="col">layer</th>
                <th scope="col">operator</th>
                <th scope="col">by itself</th>
                {hasErrors && <th scope="col">its errors</th>}
                <th scope="col">in total</th>
                {hasErrors && <th scope="col">all errors</th>}
                <th scope="col" class="number">
                  range used
                </th>
                <th scope="col" class="number">
                  clipped
                </th>
                {hasValues && <th scope="col">values</th>}
                <th scope="col">advice</th>
              </tr>
            </thead>
            <tbody>
              {layers.map((layer, i) => (
                <tr key={`${layer.name}/${i}`}>
                  <th scope="row">
                    <button type="button" class="link" onClick={() => choose(layer)}>
                      {layer.module === "" ? layer.name : layer.module}
                    </button>
                  </th>
                  <td>{layer.operator}</td>
                  <td>
                    <NoiseBar decibels={layer.own} label="by itself" />
                  </td>
                  {hasErrors && <td>{histogram(layer.own_errors, `Errors of ${layer.name} by itself`, true)}</td>}
                  <td>
                    <NoiseBar decibels={layer.total} label="in total" />
                  </td>
                  {hasErrors && <td>{histogram(layer.total_errors, `Errors of ${layer.name} in total`, true)}</td>}
                  <td class="number">{layer.range_use === null ? "–" : percent(layer.range_use)}</td>
                  <td class="number">{layer.clipped === null ? "–" : percent(layer.clipped)}</td>
                  {hasValues && <td>{histogram(layer.values, `Values of ${layer.name}`, false)}</td>}
                  <td>{layer.worth_leaving ? "leave in float" : ""}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
    </div>
  );
}
