// The buttons above the graph.

import type { Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useView } from "../context";
import type { Box } from "./boxes";

export type PictureFormat = "SVG" | "PNG";

interface Props {
  boxes: () => Box[];
  zoom: (factor: number) => void;
  fit: () => void;
  save: (format: PictureFormat) => void;
}

function Check({ shown, children }: { shown: Signal<boolean>; children: string }): JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={shown.value} onChange={(event) => (shown.value = event.currentTarget.checked)} />
      {children}
    </label>
  );
}

export function GraphControls({ boxes, zoom, fit, save }: Props): JSX.Element {
  const state = useView();
  return (
    <>
      <Check shown={state.showModules}>Modules</Check>
      <Check shown={state.showState}>Parameters</Check>
      <Check shown={state.showRemoved}>Removed</Check>
      <span class="segmented" role="group" aria-label="Boxes">
        <button
          type="button"
          aria-label="Collapse all boxes"
          title="Collapse all boxes"
          onClick={() => state.setOpen(boxes(), false)}
        >
          ⊟
        </button>
        <button
          type="button"
          aria-label="Expand all boxes"
          title="Expand all boxes"
          onClick={() => state.setOpen(boxes(), true)}
        >
          ⊞
        </button>
      </span>
      <span class="segmented" role="group" aria-label="Zoom">
        <button type="button" aria-label="Zoom out" onClick={() => zoom(0.8)}>
          −
        </button>
        <button type="button" onClick={fit}>
          Fit
        </button>
        <button type="button" aria-label="Zoom in" onClick={() => zoom(1.25)}>
          +
        </button>
      </span>
      <span class="segmented" role="group" aria-label="Save the graph as a picture">
        {(["SVG", "PNG"] as const).map((format) => (
          <button key={format} type="button" title={`Save the graph as ${format}`} onClick={() => save(format)}>
            {format}
          </button>
        ))}
      </span>
    </>
  );
}
