// A call over time: modules around one another, launches, and what each thread worked on where that was measured.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useView } from "../context";
import type { Launch } from "../data/contract";
import { ofPeak, percent, plural, scaled, seconds } from "../data/format";
import type { TimeBar, TimeBars } from "../data/time_bars";
import type { Measured } from "./ProfilePanel";
import { categoryOfOperator } from "../graph/categories";
import { scheme } from "../theme";
import { linear } from "./scales";
import { useWidth } from "./width";

const LANE = 22;
const AXIS = 20;
const LABEL = 70;

interface Props {
  measured: Measured;
  times: TimeBars;
  longest: number;
}

export function ThreadTimeline({ measured, times, longest }: Props): JSX.Element {
  const state = useView();
  const { profile, origins, kernels, title } = measured;
  const { bars, moduleLanes, threadLanes } = times;
  const [frame, width] = useWidth(900);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [range, setRange] = useState<[number, number]>([0, 1]);
  const [hovered, hover] = useState<TimeBar | null>(null);
  const lanes = moduleLanes + 1 + threadLanes;
  const height = lanes * LANE + AXIS;
  const span = longest * (range[1] - range[0]);
  const low = longest * range[0];
  const inner = Math.max(50, width - LABEL - 8);
  const scale = linear(low, low + span, LABEL, LABEL + inner, 8);
  const linked = state.linked.value;
  const colors = scheme.value;
  const launchOf = (bar: TimeBar): Launch | undefined => profile.launches[bar.launch];
  const nameOf = (bar: TimeBar): string => {
    const launch = launchOf(bar);
    if (!launch) return bar.module.slice(bar.module.lastIndexOf(".") + 1);
    return `${origins[launch.origin]?.op ?? "?"} · ${kernels[launch.kernel]?.name ?? "?"}`;
  };
  const labelOf = (lane: number): string => {
    if (lane < moduleLanes) return lane === 0 ? "modules" : "";
    return lane === moduleLanes ? "launches" : `thread ${lane - moduleLanes - 1}`;
  };
  const describe = (bar: TimeBar): string => {
    const launch = launchOf(bar);
    const time = seconds(bar.end - bar.begin);
    if (!launch) return `${bar.module} · ${time}`;
    const thread = bar.lane > moduleLanes ? ` · ${labelOf(bar.lane)}` : "";
    const idle = launch.idle === null ? "" : ` · idle ${percent(launch.idle)}`;
    const rate = scaled(launch.flops / Math.max(launch.seconds, 1e-30));
    return `${nameOf(bar)}${thread} · ${time} · ${rate}FLOP/s · ${ofPeak(launch.peak)} of peak${idle} · ${origins[launch.origin]?.module ?? ""}`;
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
    for (let lane = 0; lane < lanes; lane++) context.fillText(labelOf(lane), 4, lane * LANE + LANE / 2);
    context.save();
    context.beginPath();
    context.rect(LABEL, 0, inner, height);
    context.clip();
    for (const bar of bars) {
      const x = scale.at(bar.begin);
      const size = Math.max(0.6, scale.at(bar.end) - x);
      if (x + size < LABEL || x > width) continue;
      const launch = launchOf(bar);
      const y = bar.lane * LANE + 2;
      const wide = Math.max(0.6, size - (size > 4 ? 1 : 0));
      context.fillStyle = color("--surface");
      context.fillRect(x, y, wide, LANE - 4);
      context.fillStyle = launch ? color(`--${categoryOfOperator(origins[launch.origin]?.op ?? "")}`) : color("--raised");
      context.globalAlpha = launch ? 0.5 : 1;
      context.fillRect(x, y, wide, LANE - 4);
      context.globalAlpha = 1;
      if (launch && measured.own && linked?.origins.has(launch.origin)) {
        context.strokeStyle = color("--accent");
        context.lineWidth = 2;
        context.strokeRect(x, y, size, LANE - 4);
        context.lineWidth = 1;
      }
      if (size > 30 && bar.lane <= moduleLanes) {
        const from = Math.max(x, LABEL);
        context.save();
        context.beginPath();
        context.rect(from, bar.lane * LANE, x + size - from - 3, LANE);
        context.clip();
        context.fillStyle = color("--text");
        context.fillText(nameOf(bar), from + 4, bar.lane * LANE + LANE / 2 + 0.5);
        context.restore();
      }
    }
    context.restore();
  }, [width, height, range, times, linked, colors]);

  const find = (event: MouseEvent): TimeBar | null => {
    const box = canvas.current!.getBoundingClientRect();
    const time = low + ((event.clientX - box.left - LABEL) / inner) * span;
    const lane = Math.floor((event.clientY - box.top) / LANE);
    return bars.find((bar) => bar.lane === lane && time >= bar.begin && time <= bar.end) ?? null;
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
          {hovered ? describe(hovered) : threadLanes === 0 ? "when each thread worked was not measured" : ""}
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
          aria-label={`${profile.launches.length} launches on ${plural(profile.threads, "thread")} in ${seconds(times.end)}; the table below has the times`}
          data-bars={bars.length}
          data-lanes={lanes}
          tabIndex={0}
          onPointerMove={(event) => hover(find(event))}
          onPointerLeave={() => hover(null)}
          onClick={(event) => {
            const bar = find(event);
            if (!bar || !measured.own) return;
            const launch = launchOf(bar);
            const module = launch ? -1 : state.view.modules.findIndex(({ path }) => path === bar.module);
            if (launch) state.select({ kind: "origin", origin: launch.origin });
            else if (module >= 0) state.select({ kind: "module", module }, false);
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
