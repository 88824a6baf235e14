// The graphs of two models beside each other: stages of one name, and what is selected, go together.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { StateContext, useView } from "../context";
import { titlesOf } from "../data/contract";
import { findCounterpart, type Shown } from "../data/counterpart";
import { GraphPane } from "../graph/GraphPane";
import { ViewState } from "../state";
import { Split } from "./Split";

function shownIn(state: ViewState): Shown {
  return { view: state.view, stage: state.graphStage.value, seed: state.seed.value, linked: state.linked.value };
}

function StageChoice({ state, other, title }: { state: ViewState; other: ViewState; title: string }): JSX.Element {
  const choose = (stage: number): void => {
    state.stage.value = stage;
    const { name } = state.view.stages[stage];
    const same = other.program.graphStages.find((at) => other.view.stages[at].name === name);
    if (same !== undefined) other.stage.value = same;
  };
  const graphs = state.program.graphStages;
  // A stage of loops or code shows the last graph before it.
  const current = [...graphs].reverse().find((at) => at <= state.stage.value) ?? graphs[0];
  return (
    <select aria-label={`Stage of ${title}`} value={current} onChange={(event) => choose(Number(event.currentTarget.value))}>
      {graphs.map((at) => (
        <option key={at} value={at}>
          {state.view.stages[at].name}
        </option>
      ))}
    </select>
  );
}

export function GraphPair(): JSX.Element | null {
  const first = useView();
  const { view } = first;
  const second = useMemo(() => (view.compare === null ? null : new ViewState(view.compare, first)), [view]);
  // What one graph has selected because the other did.
  const followed = useRef<unknown>(null);
  const follow = (from: ViewState, to: ViewState | null): void => {
    if (to === null || (followed.current !== null && from.seed.value === followed.current)) return;
    followed.current = findCounterpart(shownIn(from), shownIn(to));
    to.select(to.seed.value === null && followed.current === null ? null : (followed.current as typeof to.seed.value));
  };
  useEffect(() => follow(first, second), [first.seed.value]);
  useEffect(() => {
    if (second !== null) follow(second, first);
  }, [second?.seed.value]);
  if (second === null) return null;
  const titles = titlesOf(view);
  const pane = (state: ViewState, other: ViewState, place: number) => ({
    key: `graph${place}`,
    weight: 1,
    node: (
      <StateContext.Provider value={state}>
        <GraphPane title={titles[place]} place={place} controls={<StageChoice state={state} other={other} title={titles[place]} />} />
      </StateContext.Provider>
    ),
  });
  return <Split name="graphs" direction="row" items={[pane(first, second, 0), pane(second, first, 1)]} />;
}
