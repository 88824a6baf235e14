// The memory plan: where in the arena each buffer lies, over the steps in which it lives.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useView } from "../context";
import { titlesOf, type BufferInfo, type Memory, type Origin } from "../data/contract";
import { bytes, plural } from "../data/format";
import { categoryOfOperator } from "../graph/categories";
import { linear } from "./scales";
import { useWidth } from "./width";

const LEFT = 72;
const BOTTOM = 34;
const MOST = 4000;

/** Bytes that are live at each step. */
export function liveBytes(memory: Memory): number[] {
  const changes = new Array<number>(memory.steps + 1).fill(0);
  for (const { first, last, bytes } of memory.buffers) {
    changes[Math.max(0, first)] += bytes;
    if (last + 1 <= memory.steps) changes[last + 1] -= bytes;
  }
  let live = 0;
  return changes.slice(0, memory.steps).map((change) => (live += change));
}

function Plan({ memory, origins, own, title }: { memory: Memory; origins: Origin[]; own: boolean; title: string }): JSX.Element {
  const state = useView();
  const [frame, width] = useWidth(900);
  const [hovered, hover] = useState<BufferInfo | null>(null);
  const linked = state.linked.value;
  const slots = Math.max(0, ...memory.buffers.map(({ slot }) => (slot ?? -1) + 1));
  const byOffset = !memory.dynamic && memory.buffers.every(({ offset }) => offset !== null);
  const top = byOffset ? Math.max(1, memory.size ?? 0, ...memory.buffers.map(({ offset, bytes }) => offset! + bytes)) : Math.max(1, slots);
  const height = byOffset ? 380 : Math.min(500, Math.max(120, slots * 22 + BOTTOM + 20));
  const steps = Math.max(1, memory.steps);
  const x = linear(0, steps, LEFT, width - 10, 10);
  const y = linear(0, top, height - BOTTOM, 10, 6, byOffset);
  const live = liveBytes(memory);
  const peak = Math.max(0, ...live);
  const describe = (buffer: BufferInfo): string =>
    `${buffer.name} · ${buffer.dtype}${buffer.shape} · ${bytes(buffer.bytes)} · steps ${buffer.first}–${buffer.last}` +
    (buffer.origin >= 0 ? ` · ${origins[buffer.origin]?.text ?? ""}` : "");
  return (
    <section class="card" aria-label={`Memory plan of ${title}`}>
      <header class="card-header">
        <h3>{title}</h3>
        <span class="card-note">{hovered ? describe(hovered) : `${plural(memory.buffers.length, "buffer")} over ${plural(memory.steps, "step")}`}</span>
      </header>
      <dl class="summary">
        <div>
          <dt>arena</dt>
          <dd class="big">{memory.size === null ? "by the sizes of a call" : bytes(memory.size)}</dd>
        </div>
        <div>
          <dt>live at most</dt>
          <dd>{bytes(peak)}</dd>
        </div>
        <div>
          <dt>without sharing</dt>
          <dd>{bytes(memory.buffers.reduce((sum, buffer) => sum + buffer.bytes, 0))}</dd>
        </div>
        <div>
          <dt>weights</dt>
          <dd>{bytes(memory.weights)}</dd>
        </div>
      </dl>
      <div ref={frame}>
        <svg class="plot memory-plot" width={width} height={height} role="img" aria-label={`Buffers of the arena over ${memory.steps} steps; at most ${bytes(peak)} are live`}>
          {x.ticks.filter(Number.isInteger).map((tick) => (
            <g key={`x${tick}`}>
              <line class="grid" x1={x.at(tick)} x2={x.at(tick)} y1={10} y2={height - BOTTOM} />
              <text x={x.at(tick)} y={height - BOTTOM + 14} text-anchor="middle">
                {tick}
              </text>
            </g>
          ))}
          {y.ticks
            .filter((tick) => byOffset || Number.isInteger(tick))
            .map((tick) => (
              <g key={`y${tick}`}>
                <line class="grid" x1={LEFT} x2={width - 10} y1={y.at(tick)} y2={y.at(tick)} />
                <text x={LEFT - 6} y={y.at(tick) + 4} text-anchor="end">
                  {byOffset ? bytes(Math.round(tick)) : `slot ${tick}`}
                </text>
              </g>
            ))}
          <text x={(LEFT + width) / 2} y={height - 4} text-anchor="middle">
            step
          </text>
          {memory.buffers.slice(0, MOST).map((buffer, i) => {
            const low = byOffset ? buffer.offset! : (buffer.slot ?? 0);
            const high = byOffset ? low + buffer.bytes : low + 0.9;
            const chosen = own && buffer.origin >= 0 && (linked?.origins.has(buffer.origin) ?? false);
            const left = x.at(buffer.first);
            const size = Math.max(1.5, x.at(buffer.last + 1) - left - 0.5);
            const tall = Math.max(1.5, y.at(low) - y.at(high) - 0.5);
            return (
              <g
                key={i}
                class={chosen ? "buffer linked" : "buffer"}
                style={{ "--fill": `var(--${categoryOfOperator(origins[buffer.origin]?.op ?? "")})` }}
                onPointerEnter={() => hover(buffer)}
                onPointerLeave={() => hover(null)}
                onClick={() => own && buffer.origin >= 0 && state.select({ kind: "origin", origin: buffer.origin })}
              >
                <rect x={left} y={y.at(high)} width={size} height={tall} rx={1.5} />
                {size > 60 && tall > 13 && (
                  <text x={left + 5} y={y.at(high) + tall / 2 + 4}>
                    {buffer.name.length * 7 < size ? buffer.name : ""}
                  </text>
                )}
              </g>
            );
          })}
        </svg>
      </div>
    </section>
  );
}

export function MemoryPanel(): JSX.Element {
  const { view } = useView();
  const [own, other] = titlesOf(view);
  const { memory, compare } = view;
  return (
    <div class={`panel memory${memory && compare?.memory ? " pair" : ""}`}>
      {memory && <Plan memory={memory} origins={view.origins} own title={compare ? own : "Memory plan"} />}
      {compare?.memory && <Plan memory={compare.memory} origins={compare.origins} own={false} title={other} />}
    </div>
  );
}
