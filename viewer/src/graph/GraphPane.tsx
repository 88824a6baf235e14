// The graph: boxes and nodes on a canvas, with the pointer and the keyboard. The outline lists the same for screen readers.

import type { JSX, TargetedPointerEvent } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { useView } from "../context";
import { plural } from "../data/format";
import { ColorBar } from "../colors/ColorBar";
import { makeColoring } from "../colors/coloring";
import { choicesOf } from "../colors/measures";
import { LayoutClient } from "../layout/client";
import { Pane } from "../panes/Pane";
import { labelOf, type Box, type BoxTree, type Cell } from "./boxes";
import { CATEGORIES } from "./categories";
import { GraphControls, type PictureFormat } from "./GraphControls";
import { drawPng, drawSvg, offerFile } from "./picture";
import { BOLD, cellAt, FONT, paint, type Camera, type Emphasis, type Palette } from "./painter";
import { scheme } from "../theme";
import { prepareScene, type Scene, type SceneCell, type SceneEdge } from "./scene";

const client = new LayoutClient();
const LARGEST = 2.5;
const SMALLEST = 0.02;

/** For tests and measurements: what the graph shows now, and where. */
export interface GraphProbe {
  keys: () => string[];
  /** The middle of a cell's title, in pixels of the window. */
  position: (key: string) => [number, number] | null;
  drawn: { cells: number; edges: number };
  camera: () => Camera;
  paints: number;
  /** The color that a cell has by the reader's choice; "" for none, null for its usual one. */
  fill: (key: string) => string | null;
  /** Keys of the cells that are drawn as selected. */
  selected: () => string[];
  inWorker: boolean;
  /** Whether a layout is under way. */
  isPending: () => boolean;
}

declare global {
  interface Window {
    ingotGraph?: GraphProbe;
    ingotSecondGraph?: GraphProbe;
  }
}

const measured = new Map<string, number>();
let ruler: CanvasRenderingContext2D | null = null;

function measure(text: string, bold: boolean): number {
  const key = (bold ? "b" : "n") + text;
  let width = measured.get(key);
  if (width === undefined) {
    ruler ??= document.createElement("canvas").getContext("2d")!;
    ruler.font = bold ? BOLD : FONT;
    width = ruler.measureText(text).width;
    measured.set(key, width);
  }
  return width;
}

function readPalette(element: Element): Palette {
  const style = getComputedStyle(element);
  const names = [
    ..."canvas node nodeText muted line edge accent accentSoft added addedSoft removed removedSoft replaced".split(" "),
    ..."replacedSoft hit box0 box1".split(" "),
    ...CATEGORIES.map(([name]) => name),
  ];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--g-${name}`).trim()])) as Palette;
}

interface Props {
  title?: string;
  /** Of two graphs beside each other. */
  place?: number;
  controls?: JSX.Element;
}

export function GraphPane({ title = "Graph", place, controls: more }: Props): JSX.Element {
  const state = useView();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scene = useRef<Scene | null>(null);
  const camera = useRef(state.camera);
  const hovered = useRef<string | null>(null);
  const palette = useRef<Palette | null>(null);
  const scheduled = useRef(false);
  const probes = useRef<GraphProbe | null>(null);
  const request = useRef(0);
  const done = useRef(0);
  const [announcement, announce] = useState("");

  const tree = state.tree.value;
  const stage = state.graphStage.value;
  const linked = state.linked.value;
  const seed = state.seed.value;
  const hits = state.hits.value;
  const changed = state.changedNodes.value;
  const version = state.openedVersion.value;
  const reveal = state.reveal.value;
  const { by, rules } = state.colors.value;
  const shade = scheme.value;

  const choices = useMemo(() => choicesOf(state.view), [state.view]);
  // A choice that was made for another model may mean nothing here.
  const choice = choices.find(({ name }) => name === by) ?? choices[0];
  const coloring = useMemo(() => {
    if (tree === null || stage === null) return null;
    const shown = { view: state.view, program: state.program, stage, tree, changed };
    return makeColoring(shown, { by: choice.name, rules }, choice.title, shade);
  }, [tree, stage, changed, choice, rules, shade]);

  const emphasis = useMemo((): ((shown: Scene) => Emphasis) => {
    return (shown) => {
      const selected = new Set<string>();
      const chosen = new Set<number>();
      for (const index of linked?.nodes ?? []) {
        for (const id of stage?.byIndex.get(index) ?? []) {
          const cell = shown.shownFor(id);
          if (cell) selected.add(cell.cell.key);
          chosen.add(id);
        }
      }
      if (seed?.kind === "module") {
        selected.clear();
        for (const { cell } of shown.cells) if (cell.kind === "module" && cell.module === seed.module) selected.add(cell.key);
      }
      const found = new Set<string>();
      for (const id of hits) {
        const cell = shown.shownFor(id);
        if (cell) found.add(cell.cell.key);
      }
      const few = chosen.size > 0 && chosen.size <= 40 && seed?.kind !== "module";
      const isEdgeSelected = (edge: SceneEdge): boolean => few && edge.pairs.some((id) => chosen.has(id));
      const fill = coloring?.fill ?? (() => null);
      return { selected, hits: found, hovered: hovered.current, changed, fill, isEdgeSelected };
    };
  }, [linked, stage, seed, hits, changed, coloring]);
  const currentEmphasis = useRef(emphasis);
  currentEmphasis.current = emphasis;

  const draw = useRef((): void => {
    if (scheduled.current) return;
    scheduled.current = true;
    requestAnimationFrame(() => {
      scheduled.current = false;
      const element = canvas.current;
      const shown = scene.current;
      if (!element || !shown) return;
      const ratio = devicePixelRatio || 1;
      const { clientWidth, clientHeight } = element;
      if (element.width !== Math.round(clientWidth * ratio) || element.height !== Math.round(clientHeight * ratio)) {
        element.width = Math.round(clientWidth * ratio);
        element.height = Math.round(clientHeight * ratio);
      }
      palette.current ??= readPalette(element);
      const context = element.getContext("2d")!;
      const marks = currentEmphasis.current(shown);
      const drawn = paint(context, shown, camera.current, clientWidth, clientHeight, ratio, palette.current, marks);
      const probe = probes.current;
      if (probe === null) return; // the first frame may come before the effects of the first render
      probe.drawn = drawn;
      probe.paints++;
    });
  }).current;

  const fit = useRef((): void => {
    const element = canvas.current;
    const shown = scene.current;
    if (!element || !shown) return;
    const { clientWidth, clientHeight } = element;
    const across = clientWidth / (shown.width + 16);
    const whole = Math.min(across, clientHeight / (shown.height + 16));
    // A tall graph is shown from its top at a size that can be read.
    const scale = Math.min(1, whole >= 0.5 || !camera.current.untouched ? whole : Math.min(across, 0.85));
    Object.assign(camera.current, {
      scale,
      x: shown.width / 2 - clientWidth / 2 / scale,
      y: shown.height * scale < clientHeight ? (shown.height - clientHeight / scale) / 2 : -8 / scale,
    });
    if (whole < 0.5 && camera.current.untouched) camera.current.y = -8 / scale;
    draw();
  }).current;

  const center = (key: string): void => {
    const element = canvas.current;
    const cell = findShown(scene.current, state.tree.peek(), key);
    if (!element || !cell) return;
    const { clientWidth, clientHeight } = element;
    const view = camera.current;
    if (view.scale < 0.6) view.scale = 0.85;
    const height = cell.open ? Math.min(cell.height, 60) : cell.height;
    const left = (cell.x - view.x) * view.scale;
    const top = (cell.y - view.y) * view.scale;
    const inside = left > 10 && top > 10 && left + cell.width * view.scale < clientWidth - 10;
    if (!inside || top + height * view.scale > clientHeight - 10) {
      view.x = cell.x + cell.width / 2 - clientWidth / 2 / view.scale;
      view.y = cell.y + height / 2 - clientHeight / 2 / view.scale;
    }
    camera.current.untouched = false;
    draw();
  };

  // A new scene for another stage, another set of open boxes or another filter.
  useLayoutEffect(() => {
    if (tree === null) return;
    const serial = ++request.current;
    const prepared = prepareScene(tree, state.isOpen, state.view.types, measure);
    client.request(prepared.spec, (layout) => {
      if (serial !== request.current) return;
      const before = scene.current;
      const next = prepared.build(layout);
      scene.current = next;
      if (camera.current.untouched) fit();
      else if (before !== null) keepInPlace(before, next, camera.current, canvas.current!);
      done.current = serial;
      draw();
      const first = performance.getEntriesByName("ingot-first-graph").length === 0;
      requestAnimationFrame(() => performance.mark(first ? "ingot-first-graph" : "ingot-graph"));
      const wanted = state.reveal.peek();
      if (wanted && wanted.serial !== revealed.current) {
        revealed.current = wanted.serial;
        center(wanted.key);
      }
    });
  }, [tree, version]);

  const revealed = useRef(0);
  useEffect(() => {
    // Boxes that are opened for it are laid out first.
    if (!reveal || reveal.serial === revealed.current || done.current !== request.current) return;
    revealed.current = reveal.serial;
    center(reveal.key);
  }, [reveal]);

  useEffect(draw, [emphasis]);

  useEffect(() => {
    const element = canvas.current!;
    const probe: GraphProbe = {
      keys: () => scene.current?.cells.map(({ cell }) => cell.key) ?? [],
      position: (key) => {
        const cell = scene.current?.byKey.get(key);
        if (!cell) return null;
        const box = element.getBoundingClientRect();
        const { x, y, scale } = camera.current;
        return [box.left + (cell.x + cell.width / 2 - x) * scale, box.top + (cell.y + 12 - y) * scale];
      },
      drawn: { cells: 0, edges: 0 },
      camera: () => ({ ...camera.current }),
      paints: 0,
      fill: (key) => {
        const cell = scene.current?.byKey.get(key);
        return scene.current && cell ? currentEmphasis.current(scene.current).fill(cell.cell) : null;
      },
      selected: () => (scene.current ? [...currentEmphasis.current(scene.current).selected] : []),
      inWorker: client.isInWorker,
      isPending: () => done.current !== request.current,
    };
    probes.current = probe;
    if (place === 1) window.ingotSecondGraph = probe;
    else window.ingotGraph = probe;
    const observer = new ResizeObserver(() => {
      if (camera.current.untouched) fit();
      draw();
    });
    observer.observe(element);
    const recolor = (): void => {
      palette.current = null;
      draw();
    };
    const attributes = new MutationObserver(recolor);
    attributes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    const onWheel = (event: WheelEvent): void => {
      event.preventDefault();
      const view = camera.current;
      camera.current.untouched = false;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        view.x += (event.deltaX || event.deltaY) / view.scale;
      } else {
        const box = element.getBoundingClientRect();
        zoomAt(event.clientX - box.left, event.clientY - box.top, Math.exp(-event.deltaY * 0.0016));
      }
      draw();
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => {
      observer.disconnect();
      attributes.disconnect();
      element.removeEventListener("wheel", onWheel);
    };
  }, []);

  const zoomAt = (x: number, y: number, factor: number): void => {
    const view = camera.current;
    const scale = Math.min(LARGEST, Math.max(SMALLEST, view.scale * factor));
    view.x += x / view.scale - x / scale;
    view.y += y / view.scale - y / scale;
    view.scale = scale;
  };
  const zoom = (factor: number): void => {
    camera.current.untouched = false;
    zoomAt(canvas.current!.clientWidth / 2, canvas.current!.clientHeight / 2, factor);
    draw();
  };
  const at = (event: MouseEvent): ReturnType<typeof cellAt> => {
    const box = canvas.current!.getBoundingClientRect();
    const { x, y, scale } = camera.current;
    const shown = scene.current;
    return shown && cellAt(shown, x + (event.clientX - box.left) / scale, y + (event.clientY - box.top) / scale);
  };
  const choose = (cell: Cell): void => {
    announce(`${labelOf(cell)} selected`);
    if (cell.kind === "leaf" || cell.instance >= 0) {
      const index = cell.kind === "leaf" ? cell.index : stage!.instances[cell.instance].index;
      const path = cell.kind === "leaf" && cell.instance < 0 ? "" : stage!.graphs[stage!.instances[cell.instance].graph].path;
      state.select({ kind: "node", index, graph: path }, false);
    } else if (cell.module >= 0) state.select({ kind: "module", module: cell.module }, false);
  };
  const toggle = (box: Box): void => {
    camera.current.untouched = false;
    state.setOpen([box], !state.isOpen(box));
    announce(`${box.title} ${state.isOpen(box) ? "expanded" : "collapsed"}`);
  };

  const onPointerDown = (event: TargetedPointerEvent<HTMLCanvasElement>): void => {
    const element = event.currentTarget;
    element.focus();
    element.setPointerCapture(event.pointerId);
    const start = { x: event.clientX, y: event.clientY };
    const { x: startX, y: startY } = camera.current;
    let dragged = false;
    const onMove = (move: PointerEvent): void => {
      const [byX, byY] = [move.clientX - start.x, move.clientY - start.y];
      if (!dragged && Math.hypot(byX, byY) < 4) return;
      dragged = true;
      camera.current.untouched = false;
      camera.current.x = startX - byX / camera.current.scale;
      camera.current.y = startY - byY / camera.current.scale;
      draw();
    };
    const onUp = (up: PointerEvent): void => {
      element.removeEventListener("pointermove", onMove);
      element.removeEventListener("pointerup", onUp);
      if (dragged) return;
      const found = at(up);
      if (found === null) return state.select(null);
      const { x, y, scale } = camera.current;
      const box = element.getBoundingClientRect();
      const [inX, inY] = [x + (up.clientX - box.left) / scale - found.x, y + (up.clientY - box.top) / scale - found.y];
      if (found.cell.kind !== "leaf" && inX < 22 && inY < 26) toggle(found.cell);
      else choose(found.cell);
    };
    element.addEventListener("pointermove", onMove);
    element.addEventListener("pointerup", onUp);
  };

  const onKeyDown = (event: KeyboardEvent): void => {
    const marks = scene.current ? currentEmphasis.current(scene.current) : null;
    const key = marks?.selected.values().next().value;
    const selected = key === undefined ? undefined : scene.current?.byKey.get(key);
    const pan = 60 / camera.current.scale;
    if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0" || event.key === "f") {
      camera.current.untouched = false;
      fit();
    } else if (event.key === "w") camera.current.y -= pan;
    else if (event.key === "s") camera.current.y += pan;
    else if (event.key === "a") camera.current.x -= pan;
    else if (event.key === "d") camera.current.x += pan;
    else if (event.key === "Escape") state.select(null);
    else if (event.key === "Enter" && selected && selected.cell.kind !== "leaf") toggle(selected.cell);
    else if (event.key === "Backspace" && selected?.cell.parent?.parent) {
      const { parent } = selected.cell;
      toggle(parent);
      state.revealBox(parent);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") neighbor(event.key === "ArrowDown" ? 1 : -1, selected?.cell);
    else return;
    if ("wasd".includes(event.key)) camera.current.untouched = false;
    event.preventDefault();
    event.stopPropagation();
    draw();
  };
  const neighbor = (by: number, cell: Cell | undefined): void => {
    if (!stage) return;
    let next: number | undefined = stage.instances.find(({ id }) => tree?.cells.has(id))?.id;
    if (cell && (cell.kind === "leaf" || cell.instance >= 0)) {
      const from = stage.instances[cell.instance];
      next = (by > 0 ? from?.users : from?.inputs)?.find((id) => tree?.cells.has(id));
    }
    if (next === undefined) return;
    const { index, graph } = stage.instances[next];
    state.select({ kind: "node", index, graph: stage.graphs[graph].path });
    announce(stage.instances[next].info.text);
  };
  const save = (format: PictureFormat): void => {
    const shown = scene.current;
    const element = canvas.current;
    if (!shown || !element || !stage || !coloring) return;
    palette.current ??= readPalette(element);
    const marks = currentEmphasis.current(shown);
    const file = `${state.view.title} ${stage.info.name}`;
    if (format === "PNG") {
      void drawPng(shown, palette.current, marks, coloring.legend).then((picture) => picture && offerFile(`${file}.png`, picture));
      return;
    }
    const text = drawSvg(shown, palette.current, marks, coloring.legend, (text, font) => measure(text, font === BOLD));
    offerFile(`${file}.svg`, new Blob([text], { type: "image/svg+xml" }));
  };
  const boxes = (): Box[] => (tree ? [...tree.boxes.values()].filter((box) => box.kind !== "root") : []);
  const hover = (event: MouseEvent): void => {
    const found = at(event);
    const key = found?.cell.key ?? null;
    if (key === hovered.current) return;
    hovered.current = key;
    canvas.current!.style.cursor = found ? "pointer" : "grab";
    canvas.current!.title = found ? describe(found.cell) : "";
    draw();
  };

  const controls = (
    <>
      {more}
      <GraphControls
        boxes={boxes}
        zoom={zoom}
        fit={() => {
          camera.current.untouched = false;
          fit();
        }}
        save={save}
      />
    </>
  );
  const name = stage ? `${stage.info.name} · ${plural(stage.info.counts.nodes ?? stage.instances.length, "node")}` : "";
  return (
    <Pane name="graph" title={title} note={name} controls={controls} stays={place !== undefined}>
      <div class="graph-frame">
      {coloring && <ColorBar choices={choices} choice={choice} legend={coloring.legend} />}
      <div class="graph-ground">
      <canvas
        ref={canvas}
        class="graph-canvas"
        tabIndex={0}
        role="application"
        aria-label={`Graph of ${name}. Arrow up and down follow inputs and users, Enter opens a box, plus and minus zoom, 0 fits.`}
        onPointerDown={onPointerDown}
        onPointerMove={hover}
        onPointerLeave={() => {
          hovered.current = null;
          draw();
        }}
        onDblClick={(event) => {
          const found = at(event);
          if (found && found.cell.kind !== "leaf") toggle(found.cell);
        }}
        onKeyDown={onKeyDown}
      />
      </div>
      </div>
      <div class="sr-only" aria-live="polite">
        {announcement}
      </div>
      {tree === null && <p class="empty">This view has no graph.</p>}
    </Pane>
  );
}

/** All of a cell's text, for where its box is too small for it. */
function describe(cell: Cell): string {
  if (cell.kind === "leaf") return cell.module === "" ? cell.info.text : `${cell.module}: ${cell.info.text}`;
  return `${cell.title} ${cell.subtitle}, ${plural(cell.nodes, "node")}`;
}

/** The cell with a key, or the closed box around it. */
function findShown(scene: Scene | null, tree: BoxTree | null, key: string): SceneCell | undefined {
  const shown = scene?.byKey.get(key);
  if (shown || !scene || !tree) return shown;
  const cell = tree.boxes.get(key) ?? [...tree.cells.values()].find((other) => other.key === key);
  for (let box = cell?.parent ?? null; box !== null; box = box.parent) {
    const around = scene.byKey.get(box.key);
    if (around && !around.open) return around;
  }
  return undefined;
}

/** Moves the camera so that what was in its middle stays there, if the next scene has it. */
function keepInPlace(before: Scene, next: Scene, camera: Camera, element: HTMLCanvasElement): void {
  const middleX = camera.x + element.clientWidth / 2 / camera.scale;
  const middleY = camera.y + element.clientHeight / 2 / camera.scale;
  let best: { distance: number; key: string } | null = null;
  for (const cell of before.cells) {
    if (!next.byKey.has(cell.cell.key)) continue;
    const x = Math.max(cell.x, Math.min(middleX, cell.x + cell.width));
    const y = Math.max(cell.y, Math.min(middleY, cell.y + cell.height));
    const distance = Math.hypot(x - middleX, y - middleY) - cell.depth * 0.01;
    if (best === null || distance < best.distance) best = { distance, key: cell.cell.key };
  }
  if (best === null) return;
  const [from, to] = [before.byKey.get(best.key)!, next.byKey.get(best.key)!];
  const grows = from.open !== to.open;
  camera.x += to.x - from.x + (grows ? (to.width - from.width) / 2 : 0);
  camera.y += to.y - from.y;
}

