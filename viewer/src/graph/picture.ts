// The whole graph as a picture: SVG, or PNG at twice the size.

import { LEGEND_HEIGHT, legendWidth, paintLegend } from "../colors/legend_picture";
import type { Legend } from "../colors/coloring";
import { paint, type Emphasis, type Palette, type Pen } from "./painter";
import type { Scene } from "./scene";

const MARGIN = 16;
/** Pixels that a canvas of every browser can have: on a side, and in all. */
const MOST_SIDE = 16_384;
const MOST_PIXELS = 100_000_000;

function escapeText(text: string): string {
  // Control characters, which XML does not have.
  const plain = text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
  return plain.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}

const short = (value: number): string => String(Math.round(value * 100) / 100);

/** What the painter draws with, writing SVG. Texts are measured by a canvas. */
export class SvgPen implements Pen {
  fillStyle = "";
  strokeStyle = "";
  lineWidth = 1;
  font = "";
  textBaseline: CanvasTextBaseline = "alphabetic";
  private readonly parts: string[] = [];
  private path = "";
  private dash = "";
  private clips = 0;
  /** How many groups each `save` has opened since. */
  private readonly groups: number[] = [];

  constructor(private readonly measure: (text: string, font: string) => number) {}

  setTransform(): void {}
  beginPath(): void {
    this.path = "";
  }
  moveTo(x: number, y: number): void {
    this.path += `M${short(x)} ${short(y)}`;
  }
  lineTo(x: number, y: number): void {
    this.path += `L${short(x)} ${short(y)}`;
  }
  bezierCurveTo(a: number, b: number, c: number, d: number, x: number, y: number): void {
    this.path += `C${[a, b, c, d, x, y].map(short).join(" ")}`;
  }
  rect(x: number, y: number, width: number, height: number): void {
    this.path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}z`;
  }
  roundRect(x: number, y: number, width: number, height: number, radius: number): void {
    const r = Math.min(radius, width / 2, height / 2);
    const arc = (dx: number, dy: number): string => `a${short(r)} ${short(r)} 0 0 1 ${short(dx)} ${short(dy)}`;
    const [across, down] = [width - 2 * r, height - 2 * r];
    this.path += `M${short(x + r)} ${short(y)}h${short(across)}${arc(r, r)}v${short(down)}${arc(-r, r)}h${short(-across)}${arc(-r, -r)}v${short(-down)}${arc(r, -r)}z`;
  }
  fill(): void {
    this.parts.push(`<path d="${this.path}" fill="${escapeText(this.fillStyle)}"/>`);
  }
  stroke(): void {
    if (this.path === "") return;
    const dash = this.dash === "" ? "" : ` stroke-dasharray="${this.dash}"`;
    this.parts.push(`<path d="${this.path}" fill="none" stroke="${escapeText(this.strokeStyle)}" stroke-width="${short(this.lineWidth)}"${dash}/>`);
  }
  fillRect(x: number, y: number, width: number, height: number): void {
    this.path = "";
    this.rect(x, y, width, height);
    this.fill();
  }
  strokeRect(x: number, y: number, width: number, height: number): void {
    this.path = "";
    this.rect(x, y, width, height);
    this.stroke();
  }
  fillText(text: string, x: number, y: number): void {
    if (text === "") return;
    const baseline = this.textBaseline === "middle" ? ` dominant-baseline="central"` : "";
    this.parts.push(
      `<text x="${short(x)}" y="${short(y)}"${baseline} fill="${escapeText(this.fillStyle)}" style="font:${escapeText(this.font)}">${escapeText(text)}</text>`,
    );
  }
  measureText(text: string): { width: number } {
    return { width: this.measure(text, this.font) };
  }
  setLineDash(segments: number[]): void {
    this.dash = segments.join(" ");
  }
  save(): void {
    this.groups.push(0);
  }
  clip(): void {
    const id = `c${++this.clips}`;
    this.parts.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath><g clip-path="url(#${id})">`);
    if (this.groups.length > 0) this.groups[this.groups.length - 1]++;
  }
  restore(): void {
    this.parts.push("</g>".repeat(this.groups.pop() ?? 0));
  }

  /** A picture of this size with a margin around. */
  finish(width: number, height: number, background: string): string {
    const [across, down] = [width, height].map((size) => short(size + 2 * MARGIN));
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${across}" height="${down}" viewBox="0 0 ${across} ${down}">`,
      `<rect width="100%" height="100%" fill="${escapeText(background)}"/>`,
      `<g transform="translate(${MARGIN} ${MARGIN})">`,
      ...this.parts,
      "</g></svg>\n",
    ].join("\n");
  }
}

type Measure = (text: string, font: string) => number;

export function drawSvg(scene: Scene, palette: Palette, emphasis: Emphasis, legend: Legend, measure: Measure): string {
  const pen = new SvgPen(measure);
  // At scale 1 everything can be read, so nothing is left out.
  paint(pen, scene, { x: -1, y: -1, scale: 1 }, scene.width + 2, scene.height + 2, 1, palette, emphasis);
  paintLegend(pen, legend, palette, scene.height);
  return pen.finish(Math.max(scene.width, legendWidth(pen, legend)), scene.height + LEGEND_HEIGHT, palette.canvas);
}

export function drawPng(scene: Scene, palette: Palette, emphasis: Emphasis, legend: Legend): Promise<Blob | null> {
  const pen = document.createElement("canvas").getContext("2d")!;
  const [width, height] = [Math.max(scene.width, legendWidth(pen, legend)) + 2 * MARGIN, scene.height + LEGEND_HEIGHT + 2 * MARGIN];
  const ratio = Math.min(2, MOST_SIDE / width, MOST_SIDE / height, Math.sqrt(MOST_PIXELS / (width * height)));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.floor(width * ratio));
  canvas.height = Math.max(1, Math.floor(height * ratio));
  const context = canvas.getContext("2d")!;
  paint(context, scene, { x: -MARGIN, y: -MARGIN, scale: 1 }, width, height, ratio, palette, emphasis);
  paintLegend(context, legend, palette, scene.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Gives the reader a file. */
export function offerFile(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
