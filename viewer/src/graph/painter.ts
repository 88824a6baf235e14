// Draws what is in view of a scene. Text and small things are left out where they would not be readable.

import { textOn } from "../colors/palettes";
import type { Box, Cell } from "./boxes";
import { categoryOf, type Category } from "./categories";
import { HEADER, type Scene, type SceneCell, type SceneEdge } from "./scene";

export interface Camera {
  /** The point of the scene in the upper left corner, and pixels per unit. */
  x: number;
  y: number;
  scale: number;
}

type Methods =
  | "setTransform"
  | "fillRect"
  | "strokeRect"
  | "beginPath"
  | "moveTo"
  | "lineTo"
  | "bezierCurveTo"
  | "rect"
  | "roundRect"
  | "fill"
  | "stroke"
  | "clip"
  | "save"
  | "restore"
  | "setLineDash";

/** What the painter asks of what it draws with: a canvas, or a picture. */
export type Pen = Pick<CanvasRenderingContext2D, Methods | "lineWidth" | "font" | "textBaseline"> & {
  fillStyle: CanvasRenderingContext2D["fillStyle"];
  strokeStyle: CanvasRenderingContext2D["strokeStyle"];
  fillText: (text: string, x: number, y: number) => void;
  measureText: (text: string) => { width: number };
};

export type Palette = Record<
  | "canvas"
  | "node"
  | "nodeText"
  | "muted"
  | "line"
  | "edge"
  | "accent"
  | "accentSoft"
  | "added"
  | "addedSoft"
  | "removed"
  | "removedSoft"
  | "replaced"
  | "replacedSoft"
  | "hit"
  | "box0"
  | "box1"
  | Category,
  string
>;

export interface Emphasis {
  /** Keys of cells that are selected, and of those around or beside them. */
  selected: Set<string>;
  hits: Set<string>;
  hovered: string | null;
  /** Nodes, by pool index, that a step of the loop IR concerns. */
  changed: Set<number>;
  /** The color that the reader asked for: "" for none, null for what a cell has without. */
  fill: (cell: Cell) => string | null;
  /** Whether an edge belongs to what is selected. */
  isEdgeSelected: (edge: SceneEdge) => boolean;
}

const TEXT_FROM = 0.42;
const EDGES_FROM = 0.06;
// Below this scale a node is a patch of its color.
const PATCHES_BELOW = 0.2;
const RADIUS = 4;
export const FONT = "12px Inter, 'Segoe UI', system-ui, sans-serif";
export const BOLD = "600 12px Inter, 'Segoe UI', system-ui, sans-serif";

export function paint(
  context: Pen,
  scene: Scene,
  camera: Camera,
  width: number,
  height: number,
  ratio: number,
  palette: Palette,
  emphasis: Emphasis,
): { cells: number; edges: number } {
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.fillStyle = palette.canvas;
  context.fillRect(0, 0, width * ratio, height * ratio);
  const scale = camera.scale * ratio;
  context.setTransform(scale, 0, 0, scale, -camera.x * scale, -camera.y * scale);
  const right = camera.x + width / camera.scale;
  const bottom = camera.y + height / camera.scale;
  const drawn = { cells: 0, edges: 0 };
  const visible = (cell: SceneCell): boolean =>
    cell.x < right && cell.y < bottom && cell.x + cell.width > camera.x && cell.y + cell.height > camera.y;

  // Open boxes come before what is in them, so they are drawn first; edges lie on them and under the nodes.
  for (const cell of scene.cells) {
    if (!cell.open || !visible(cell)) continue;
    drawOpenBox(context, cell, camera, palette, emphasis);
    drawn.cells++;
  }
  if (camera.scale >= EDGES_FROM) {
    const chosen: SceneEdge[] = [];
    context.strokeStyle = palette.edge;
    context.lineWidth = Math.max(1, 0.8 / camera.scale);
    context.beginPath();
    for (const edge of scene.edges) {
      if (edge.left > right || edge.top > bottom || edge.right < camera.x || edge.bottom < camera.y) continue;
      drawn.edges++;
      if (emphasis.isEdgeSelected(edge)) chosen.push(edge);
      else traceEdge(context, edge);
    }
    context.stroke();
    context.strokeStyle = palette.accent;
    context.lineWidth = Math.max(1.8, 1.6 / camera.scale);
    context.beginPath();
    for (const edge of chosen) traceEdge(context, edge);
    context.stroke();
  }
  for (const cell of scene.cells) {
    if (cell.open || !visible(cell)) continue;
    drawn.cells++;
    drawCell(context, cell, camera, palette, emphasis);
  }
  return drawn;
}

function traceEdge(context: Pen, { path, head }: SceneEdge): void {
  context.moveTo(path[0], path[1]);
  for (let i = 2; i < path.length; i += 2) {
    const [fromX, fromY, toX, toY] = [path[i - 2], path[i - 1], path[i], path[i + 1]];
    if (fromX === toX) context.lineTo(toX, toY);
    else {
      const middle = (fromY + toY) / 2;
      context.bezierCurveTo(fromX, middle, toX, middle, toX, toY);
    }
  }
  if (!head) return;
  const [x, y] = [path[path.length - 2], path[path.length - 1]];
  const down = y >= path[path.length - 3] ? 1 : -1;
  context.moveTo(x - 3, y - 5 * down);
  context.lineTo(x, y);
  context.lineTo(x + 3, y - 5 * down);
}

function rounded(context: Pen, cell: SceneCell, grow: number): void {
  context.beginPath();
  context.roundRect(cell.x - grow, cell.y - grow, cell.width + 2 * grow, cell.height + 2 * grow, RADIUS + grow);
}

function drawOpenBox(
  context: Pen,
  cell: SceneCell,
  camera: Camera,
  palette: Palette,
  emphasis: Emphasis,
): void {
  const box = cell.cell as Box;
  const selected = emphasis.selected.has(cell.cell.key);
  context.fillStyle = cell.depth % 2 === 0 ? palette.box0 : palette.box1;
  rounded(context, cell, 0);
  context.fill();
  context.strokeStyle = selected ? palette.accent : box.kind === "call" || box.kind === "region" ? palette.control : palette.line;
  context.lineWidth = selected ? 2 / camera.scale : 1;
  if (box.kind === "region") context.setLineDash([4, 3]);
  context.stroke();
  context.setLineDash([]);
  if (camera.scale < TEXT_FROM * 0.7) return;
  context.textBaseline = "middle";
  const middle = cell.y + HEADER / 2;
  context.fillStyle = palette.muted;
  drawMark(context, cell.x + 12, middle, true);
  context.save();
  context.beginPath();
  context.rect(cell.x, cell.y, cell.width - 4, HEADER);
  context.clip();
  context.font = BOLD;
  context.fillStyle = palette.nodeText;
  context.fillText(cell.label.title, cell.x + 22, middle);
  const used = context.measureText(cell.label.title).width;
  context.font = FONT;
  context.fillStyle = palette.muted;
  context.fillText(`${cell.label.note}`, cell.x + 30 + used, middle);
  context.restore();
}

/** A triangle: to the right for a closed box, down for an open one. */
function drawMark(context: Pen, x: number, y: number, open: boolean): void {
  context.beginPath();
  if (open) {
    context.moveTo(x - 4, y - 2);
    context.lineTo(x + 4, y - 2);
    context.lineTo(x, y + 3);
  } else {
    context.moveTo(x - 2, y - 4);
    context.lineTo(x + 3, y);
    context.lineTo(x - 2, y + 4);
  }
  context.fill();
}

const SIGNS = { added: "+", removed: "−", replaced: "~" } as const;

function drawCell(
  context: Pen,
  placed: SceneCell,
  camera: Camera,
  palette: Palette,
  emphasis: Emphasis,
): void {
  const { cell, label, x, y, width, height } = placed;
  const isLeaf = cell.kind === "leaf";
  const change = isLeaf ? cell.change : "";
  const changed = isLeaf && emphasis.changed.has(cell.index);
  const selected = emphasis.selected.has(cell.key);
  const hit = emphasis.hits.has(cell.key);
  const asked = emphasis.fill(cell);
  const filled = asked === null || asked === "" ? null : asked;
  if (isLeaf && camera.scale < PATCHES_BELOW && !selected && !hit) {
    context.fillStyle = filled ?? (asked === "" ? palette.line : change === "" ? palette[changed ? "replaced" : categoryOf(cell.info)] : palette[change]);
    context.fillRect(x, y, width, height);
    return;
  }
  const tint = changed ? palette.replacedSoft : change === "" ? palette.node : palette[`${change}Soft`];
  if (selected || hit || emphasis.hovered === cell.key) {
    context.fillStyle = selected ? palette.accentSoft : hit ? palette.hit : palette.line;
    rounded(context, placed, selected ? 4 : 3);
    context.fill();
  }
  context.fillStyle = filled ?? (isLeaf ? tint : palette.box1);
  rounded(context, placed, 0);
  context.fill();
  context.strokeStyle = selected ? palette.accent : change === "" ? (changed ? palette.replaced : palette.line) : palette[change];
  context.lineWidth = selected ? Math.max(1.5, 1.5 / camera.scale) : 1;
  if (change === "removed") context.setLineDash([4, 3]);
  context.stroke();
  context.setLineDash([]);
  if (!isLeaf) {
    // A second border: there is more inside.
    context.strokeStyle = cell.kind === "call" || cell.kind === "region" ? palette.control : palette.line;
    context.strokeRect(x + 3, y + height + 2, width - 6, 0.5);
  } else if (asked === null) {
    context.fillStyle = palette[categoryOf(cell.info)];
    context.fillRect(x, y + RADIUS, 3, height - 2 * RADIUS);
  }
  if (camera.scale < TEXT_FROM) return;
  const [strong, weak] = filled === null ? [palette.nodeText, palette.muted] : [textOn(filled), textOn(filled)];
  context.save();
  context.beginPath();
  context.rect(x, y, width - 2, height);
  context.clip();
  context.textBaseline = "middle";
  const left = isLeaf ? x + 10 : x + 22;
  const first = label.detail === "" ? y + height / 2 : y + 12.5;
  if (!isLeaf) {
    context.fillStyle = weak;
    drawMark(context, x + 11, first, false);
  }
  context.font = BOLD;
  context.fillStyle = strong;
  context.fillText(label.title, left, first);
  const used = context.measureText(label.title).width;
  context.font = FONT;
  context.fillStyle = weak;
  if (label.note !== "") context.fillText(label.note, left + used + 8, first);
  if (label.detail !== "") context.fillText(label.detail, left, y + height - 11.5);
  context.restore();
  drawCounts(context, placed, palette);
}

/** What a step changed, as signs: colors alone do not say it. */
function drawCounts(context: Pen, placed: SceneCell, palette: Palette): void {
  const { cell, x, y, width } = placed;
  const entries: [string, string][] = [];
  if (cell.kind === "leaf") {
    if (cell.change !== "") entries.push([SIGNS[cell.change], palette[cell.change]]);
  } else {
    for (const mark of ["added", "replaced", "removed"] as const) {
      if (cell.changes[mark] > 0) entries.push([`${SIGNS[mark]}${cell.changes[mark]}`, palette[mark]]);
    }
  }
  if (entries.length === 0) return;
  context.font = "600 10px Inter, 'Segoe UI', system-ui, sans-serif";
  context.textBaseline = "middle";
  let right = x + width - 2;
  for (const [text, color] of entries.reverse()) {
    const room = context.measureText(text).width + 8;
    context.fillStyle = color;
    context.beginPath();
    context.roundRect(right - room, y - 7, room, 14, 7);
    context.fill();
    context.fillStyle = palette.node;
    context.fillText(text, right - room + 4, y + 0.5);
    right -= room + 3;
  }
}

/** The innermost cell at a point of the scene. */
export function cellAt(scene: Scene, x: number, y: number): SceneCell | null {
  let found: SceneCell | null = null;
  for (const cell of scene.cells) {
    if (x < cell.x || y < cell.y || x > cell.x + cell.width || y > cell.y + cell.height) continue;
    if (found === null || cell.depth >= found.depth) found = cell;
  }
  return found;
}
