// The buttons above the graph.

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

export function GraphControls({ boxes, zoom, fit, save }: Props): JSX.Element {
  const state = useView();
  return (
    <>
      <label class="check">
        <input
          type="checkbox"
          checked={state.showState.value}
          onChange={(event) => (state.showState.value = event.currentTarget.checked)}
        />
        Parameters
      </label>
      <label class="check">
        <input
          type="checkbox"
          checked={state.showRemoved.value}
          onChange={(event) => (state.showRemoved.value = event.currentTarget.checked)}
        />
        Removed
      </label>
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
