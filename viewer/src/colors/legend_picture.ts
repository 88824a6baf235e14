// The legend of a saved picture.

import type { Palette, Pen } from "../graph/painter";
import type { Legend } from "./coloring";
import { mixStops } from "./palettes";
import { formatEnd, formatTitle } from "./legend_text";

export const LEGEND_HEIGHT = 34;
const FONT = "12px Inter, 'Segoe UI', system-ui, sans-serif";
const SWATCH = 12;
const SPACE = 14;
const RAMP = 120;

export function paintLegend(pen: Pen, legend: Legend, palette: Palette, top: number): void {
  lay(pen, legend, (kind, x, text, color) => {
    const middle = top + LEGEND_HEIGHT - 8;
    pen.fillStyle = kind === "text" ? palette.nodeText : (palette[color as keyof Palette] ?? color);
    if (kind === "text") pen.fillText(text, x, middle);
    else pen.fillRect(x, middle - SWATCH / 2, kind === "swatch" ? SWATCH : RAMP / STEPS + 0.5, SWATCH);
  });
}

export function legendWidth(pen: Pen, legend: Legend): number {
  return lay(pen, legend, () => undefined);
}

const STEPS = 24;

function lay(pen: Pen, legend: Legend, put: (kind: "text" | "swatch" | "step", x: number, text: string, color: string) => void): number {
  pen.font = FONT;
  pen.textBaseline = "middle";
  let x = 0;
  const write = (text: string): void => {
    put("text", x, text, "");
    x += pen.measureText(text).width;
  };
  write(`${formatTitle(legend)}:`);
  for (const { label, color } of legend.entries) {
    x += SPACE;
    put("swatch", x, "", color);
    x += SWATCH + 5;
    write(label);
  }
  const { scale } = legend;
  if (scale !== null) {
    x += SPACE;
    write(formatEnd(scale, scale.low));
    x += 5;
    for (let i = 0; i < STEPS; i++) put("step", x + (i * RAMP) / STEPS, "", mixStops(scale.stops, i / (STEPS - 1)));
    x += RAMP + 5;
    write(formatEnd(scale, scale.high));
  }
  return Math.ceil(x);
}
