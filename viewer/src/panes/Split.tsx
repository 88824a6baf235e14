// Panes beside or above each other, with bars between them that are dragged or moved with arrow keys.

import { Fragment, type JSX, type TargetedPointerEvent, type VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import { recall, remember } from "../state";

interface Props {
  name: string;
  direction: "row" | "column";
  /** Children with a key each and a first share of the room. */
  items: { key: string; weight: number; node: VNode }[];
}

const STEP = 0.04;
const LEAST = 0.05;

export function Split({ name, direction, items }: Props): JSX.Element | null {
  const frame = useRef<HTMLDivElement>(null);
  const [weights, setWeights] = useState<Record<string, number>>(() => recall(`split.${name}`, {}));
  if (items.length === 0) return null;
  const weight = (i: number): number => {
    const value = weights[items[i].key];
    return typeof value === "number" && value > 0 ? value : items[i].weight;
  };
  const total = items.reduce((sum, _, i) => sum + weight(i), 0);
  const move = (i: number, share: number): void => {
    const sum = weight(i) + weight(i + 1);
    const first = Math.min(sum - LEAST * total, Math.max(LEAST * total, weight(i) + share * total));
    const next = { ...weights, [items[i].key]: first, [items[i + 1].key]: sum - first };
    setWeights(next);
    remember(`split.${name}`, next);
  };
  const drag = (i: number) => (event: TargetedPointerEvent<HTMLDivElement>): void => {
    event.preventDefault();
    const bar = event.currentTarget;
    bar.setPointerCapture(event.pointerId);
    const box = frame.current!.getBoundingClientRect();
    const size = direction === "row" ? box.width : box.height;
    let last = direction === "row" ? event.clientX : event.clientY;
    const start = { ...weights };
    let moved = 0;
    const sum = weight(i) + weight(i + 1);
    const base = weight(i);
    const onMove = (move: PointerEvent): void => {
      const at = direction === "row" ? move.clientX : move.clientY;
      moved += at - last;
      last = at;
      const first = Math.min(sum - LEAST * total, Math.max(LEAST * total, base + (moved / size) * total));
      const next = { ...start, [items[i].key]: first, [items[i + 1].key]: sum - first };
      setWeights(next);
      remember(`split.${name}`, next);
    };
    const onUp = (): void => {
      bar.removeEventListener("pointermove", onMove);
      bar.removeEventListener("pointerup", onUp);
    };
    bar.addEventListener("pointermove", onMove);
    bar.addEventListener("pointerup", onUp);
  };
  return (
    <div class={`split split-${direction}`} ref={frame}>
      {items.map(({ key, node }, i) => (
        <Fragment key={key}>
          <div class="split-item" style={{ flexGrow: weight(i) / total }}>
            {node}
          </div>
          {i + 1 < items.length && (
            <div
              class="split-bar"
              role="separator"
              tabIndex={0}
              aria-orientation={direction === "row" ? "vertical" : "horizontal"}
              aria-label={`Resize ${key}`}
              aria-valuenow={Math.round((100 * weight(i)) / total)}
              aria-valuemin={0}
              aria-valuemax={100}
              onPointerDown={drag(i)}
              onKeyDown={(event) => {
                const back = direction === "row" ? "ArrowLeft" : "ArrowUp";
                const forth = direction === "row" ? "ArrowRight" : "ArrowDown";
                if (event.key !== back && event.key !== forth) return;
                event.preventDefault();
                event.stopPropagation();
                move(i, event.key === back ? -STEP : STEP);
              }}
            />
          )}
        </Fragment>
      ))}
    </div>
  );
}
