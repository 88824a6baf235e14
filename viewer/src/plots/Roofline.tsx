// Launches under the roofline: operations per byte against operations per second.

import type { JSX } from "preact";
import { useView } from "../context";
import type { Launch } from "../data/contract";
import { ofPeak, scaled, seconds, significant } from "../data/format";
import type { Measured } from "./ProfilePanel";
import { logarithmic } from "./scales";
import { useWidth } from "./width";

const HEIGHT = 320;
const LEFT = 58;
const BOTTOM = 36;
const MOST = 1500;

export function Roofline({ measured }: { measured: Measured[] }): JSX.Element | null {
  const state = useView();
  const [frame, width] = useWidth(520);
  const linked = state.linked.value;
  // Effort is work as float32 operations, so that bfloat16 and int8 kernels lie under the same roof.
  const points = measured.flatMap((each, file) =>
    each.profile.launches
      .map((launch, index) => ({ launch, index, file, each }))
      .filter(({ launch }) => launch.effort > 0 && launch.bytes > 0 && launch.seconds > 0)
      .sort((a, b) => b.launch.seconds - a.launch.seconds)
      .slice(0, MOST),
  );
  const intensity = (launch: Launch): number => launch.effort / launch.bytes;
  const speed = (launch: Launch): number => launch.effort / launch.seconds;
  const limits = measured[0]?.profile.limits ?? { flops: 1e9, bytes: 1e9 };
  const ridge = limits.flops / limits.bytes;
  const across = [...points.map(({ launch }) => intensity(launch)), ridge / 8, ridge * 4];
  const up = [...points.map(({ launch }) => speed(launch)), limits.flops, limits.flops / 100];
  const x = logarithmic(Math.min(...across) / 1.5, Math.max(...across) * 1.5, LEFT, width - 12);
  const y = logarithmic(Math.min(...up) / 1.5, Math.max(...up) * 2, HEIGHT - BOTTOM, 12);
  const [lowX, highX] = [Math.min(...across) / 1.5, Math.max(...across) * 1.5];
  const lowY = Math.min(...up) / 1.5;
  // Compiled files that hold no program do not say how much work a kernel is.
  if (points.length === 0) return null;
  const longest = Math.max(1e-30, ...points.map(({ launch }) => launch.seconds));
  return (
    <section class="card" aria-label="Roofline">
      <header class="card-header">
        <h3>Roofline</h3>
        <span class="card-note">each circle is a launch, its area the time</span>
        {measured.length > 1 && (
          <span class="card-legend">
            {measured.map(({ title }, i) => (
              <span key={i}>
                <span class={`dot fill-${i === 0 ? "a" : "b"}`} /> {title}
              </span>
            ))}
          </span>
        )}
      </header>
      <div ref={frame}>
        <svg class="plot" width={width} height={HEIGHT} role="img" aria-label={`Roofline of ${points.length} launches; the machine reaches ${scaled(limits.flops)}FLOP/s from ${significant(ridge)} FLOP per byte`}>
          {x.ticks.map((tick) => (
            <g key={`x${tick}`}>
              <line class="grid" x1={x.at(tick)} x2={x.at(tick)} y1={12} y2={HEIGHT - BOTTOM} />
              <text x={x.at(tick)} y={HEIGHT - BOTTOM + 14} text-anchor="middle">
                {tick >= 1 ? scaled(tick) : significant(tick)}
              </text>
            </g>
          ))}
          {y.ticks.map((tick) => (
            <g key={`y${tick}`}>
              <line class="grid" x1={LEFT} x2={width - 12} y1={y.at(tick)} y2={y.at(tick)} />
              <text x={LEFT - 6} y={y.at(tick) + 4} text-anchor="end">
                {scaled(tick)}
              </text>
            </g>
          ))}
          <text x={(LEFT + width) / 2} y={HEIGHT - 4} text-anchor="middle">
            FLOP per byte
          </text>
          <text transform={`translate(11 ${HEIGHT / 2 - 10}) rotate(-90)`} text-anchor="middle">
            FLOP/s
          </text>
          <polyline
            class="roof"
            points={[
              [x.at(Math.max(lowX, lowY / limits.bytes)), y.at(Math.max(lowX * limits.bytes, lowY))],
              [x.at(Math.min(ridge, highX)), y.at(Math.min(ridge, highX) * limits.bytes)],
              [x.at(highX), y.at(Math.min(limits.flops, highX * limits.bytes))],
            ]
              .map((point) => point.join(","))
              .join(" ")}
          />
          {points.map(({ launch, index, file, each }) => {
            const op = each.origins[launch.origin]?.op ?? "?";
            const chosen = each.own && (linked?.origins.has(launch.origin) ?? false);
            return (
              <circle
                key={`${file}/${index}`}
                class={`launch fill-${file === 0 ? "a" : "b"}${chosen ? " linked" : ""}`}
                cx={x.at(intensity(launch))}
                cy={y.at(speed(launch))}
                r={2.5 + 11 * Math.sqrt(launch.seconds / longest)}
                onClick={() => each.own && state.select({ kind: "origin", origin: launch.origin })}
              >
                <title>
                  {`${op} · ${each.kernels[launch.kernel]?.name ?? ""} · ${each.origins[launch.origin]?.module ?? ""}\n${seconds(launch.seconds)}, ${scaled(speed(launch))}FLOP/s, ${ofPeak(launch.peak)} of peak`}
                </title>
              </circle>
            );
          })}
        </svg>
      </div>
    </section>
  );
}
