// The frame of a pane: a title, its own controls, and a button that hides it.

import type { ComponentChildren, JSX } from "preact";
import { useView } from "../context";
import type { PaneName } from "../state";

interface Props {
  name: PaneName;
  title: string;
  note?: string;
  /** Whether it has no button that hides it. */
  stays?: boolean;
  controls?: ComponentChildren;
  children: ComponentChildren;
}

export function Pane({ name, title, note, stays, controls, children }: Props): JSX.Element {
  const state = useView();
  return (
    <section class={`pane pane-${name}`} aria-label={title} data-pane={name}>
      <header class="pane-header">
        <h2>{title}</h2>
        <span class="pane-note" title={note}>
          {note}
        </span>
        <span class="pane-controls">{controls}</span>
        {!stays && (
          <button
            type="button"
            class="icon"
            aria-label={`Hide ${title}`}
            title={`Hide ${title}`}
            onClick={() => state.togglePane(name)}
          >
            ×
          </button>
        )}
      </header>
      <div class="pane-body">{children}</div>
    </section>
  );
}
