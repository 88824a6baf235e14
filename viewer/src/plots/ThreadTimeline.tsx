// The launches of a call over time: one lane for the call, and one per thread where its busy time was measured.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useView } from "../context";
import type { Launch } from "../data/contract";
import { ofPeak, scaled, seconds } from "../data/format";
import type { Measured } from "./ProfilePanel";
import { categoryOfOperator } from "../graph/categories";
import { scheme } from "../theme";
import { linear } from "./scales";
import { useWidth } from "./width";

const LANE = 22;
const AXIS = 20;
const LABEL = 70;

export function ThreadTimeline({ measured, longest }: { measured: Measured; longest: number }): JSX.Element {
  const state = useView();
  const { profile, origins, kernels, title } = measured;
  const [frame, width] = useWidth(900);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [range, setRange] = useState<[number, number]>([0, 1]);
  const [hovered, hover] = useState<Launch | null>(null);
  const threads = Math.max(0, ...profile.launches.map(({ thread_seconds }) => thread_seconds?.length ?? 0));
  const lanes = 1 + threads;
  const height = lanes * LANE + AXIS;
  const span = longest * (range[1] - range[0]);
  const low = longest * range[0];
  const inner = Math.max(50, width - LABEL - 8);
  const scale = linear(low, low + span, LABEL, LABEL + inner, 8);
  const linked = state.linked.value;
  const colors = scheme.value;
  const name = (launch: Launch): string => {
    return `${origins[launch.origin]?.op ?? "?"} · ${kernels[launch.kernel]?.name ?? "?"}`;
  };

  useEffect(() => {
    const element = canvas.current!;
    const ratio = devicePixelRatio || 1;
    element.width = width * ratio;
    element.height = height * ratio;
    const context = element.getContext("2d")!;
    const style = getComputedStyle(element);
    const color = (variable: string): string => style.getPropertyValue(variable).trim();
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    context.font = "11px Inter, 'Segoe UI', system-ui, sans-serif";
    context.textBaseline = "middle";
    context.strokeStyle = color("--line");
    context.fillStyle = color("--muted");
    for (const tick of scale.ticks) {
      const x = Math.round(scale.at(tick)) + 0.5;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, lanes * LANE + 4);
      context.stroke();
      context.textAlign = "center";
      context.fillText(seconds(tick), x, lanes * LANE + 13);
    }
    context.textAlign = "left";
    for (let lane = 0; lane < lanes; lane++) {
      context.fillStyle = color("--muted");
      context.fillText(lane === 0 ? "call" : `thread ${lane - 1}`, 4, lane * LANE + LANE / 2);
    }
    context.save();
    context.beginPath();
    context.rect(LABEL, 0, inner, height);
    context.clip();
    for (const launch of profile.launches) {
      const fill = color(`--${categoryOfOperator(origins[launch.origin]?.op ?? "")}`);
      const chosen = measured.own && (linked?.origins.has(launch.origin) ?? false);
      for (let lane = 0; lane < lanes; lane++) {
        // Threads are timed in another run: where that one was slower, their bars end with the launch.
        const busy = lane === 0 ? launch.seconds : (launch.thread_seconds?.[lane - 1] ?? 0);
        const time = Math.min(busy, launch.seconds);
        const x = scale.at(launch.start);
        const size = Math.max(0.6, scale.at(launch.start + time) - x);
        if (time === 0 || x + size < LABEL || x > width) continue;
        const wide = Math.max(0.6, size - (size > 4 ? 1 : 0));
        context.fillStyle = color("--surface");
        context.fillRect(x, lane * LANE + 2, wide, LANE - 4);
        context.fillStyle = fill;
        context.globalAlpha = lane === 0 ? 0.5 : 0.35;
        context.fillRect(x, lane * LANE + 2, wide, LANE - 4);
        context.globalAlpha = 1;
        if (chosen) {
          context.strokeStyle = color("--accent");
          context.lineWidth = 2;
          context.strokeRect(x, lane * LANE + 2, size, LANE - 4);
          context.lineWidth = 1;
        }
        if (size > 40 && lane === 0) {
          context.save();
          context.beginPath();
          context.rect(x, lane * LANE, size - 3, LANE);
          context.clip();
          context.fillStyle = color("--text");
          context.fillText(name(launch), x + 4, lane * LANE + LANE / 2 + 0.5);
          context.restore();
        }
      }
    }
    context.restore();
  }, [width, height, range, profile, linked, colors]);

  const find = (event: MouseEvent): Launch | null => {
    const box = canvas.current!.getBoundingClientRect();
    const share = (event.clientX - box.left - LABEL) / inner;
    const time = low + share * span;
    return profile.launches.find(({ start, seconds }) => time >= start && time <= start + seconds) ?? null;
  };
  const zoom = (factor: number, middle: number): void => {
    const size = Math.min(1, (range[1] - range[0]) * factor);
    const start = Math.max(0, Math.min(1 - size, middle - size / 2));
    setRange([start, start + size]);
  };
  return (
    <section class="card" aria-label={`Time line of ${title}`}>
      <header class="card-header">
        <h3>Time line{measured.own ? "" : `: ${title}`}</h3>
        <span class="card-note">
          {hovered
            ? `${name(hovered)} · ${seconds(hovered.seconds)} · ${scaled(hovered.flops / Math.max(hovered.seconds, 1e-30))}FLOP/s · ${ofPeak(hovered.peak)} of peak · ${origins[hovered.origin]?.module ?? ""}`
            : threads === 0
              ? "busy time of each thread was not measured"
              : ""}
        </span>
        <span class="segmented" role="group" aria-label="Zoom of the time line">
          <button type="button" aria-label="Zoom out" onClick={() => zoom(2, (range[0] + range[1]) / 2)}>
            −
          </button>
          <button type="button" onClick={() => setRange([0, 1])}>
            All
          </button>
          <button type="button" aria-label="Zoom in" onClick={() => zoom(0.5, (range[0] + range[1]) / 2)}>
            +
          </button>
        </span>
      </header>
      <div ref={frame}>
        <canvas
          ref={canvas}
          class="time-canvas"
          style={{ width: `${width}px`, height: `${height}px` }}
          role="img"
          aria-label={`${profile.launches.length} launches in ${seconds(profile.seconds)}; the table below has the times`}
          tabIndex={0}
          onPointerMove={(event) => hover(find(event))}
          onPointerLeave={() => hover(null)}
          onClick={(event) => {
            const launch = find(event);
            if (launch && measured.own) state.select({ kind: "origin", origin: launch.origin });
          }}
          onKeyDown={(event) => {
            const size = range[1] - range[0];
            if (event.key === "+" || event.key === "=") zoom(0.5, (range[0] + range[1]) / 2);
            else if (event.key === "-") zoom(2, (range[0] + range[1]) / 2);
            else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
              const by = (event.key === "ArrowLeft" ? -0.2 : 0.2) * size;
              const start = Math.max(0, Math.min(1 - size, range[0] + by));
              setRange([start, start + size]);
            } else return;
            event.preventDefault();
            event.stopPropagation();
          }}
          onWheel={(event) => {
            if (!event.ctrlKey && !event.shiftKey) return;
            event.preventDefault();
            const box = event.currentTarget.getBoundingClientRect();
            const share = (event.clientX - box.left - LABEL) / inner;
            zoom(event.deltaY > 0 ? 1.25 : 0.8, range[0] + share * (range[1] - range[0]));
          }}
        />
      </div>
    </section>
  );
}
