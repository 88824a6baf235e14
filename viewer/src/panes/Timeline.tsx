// The stages as a time line, and what the chosen one did.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useView } from "../context";
import type { GraphDelta, StageInfo, StepDelta } from "../data/contract";
import { plural, seconds, value } from "../data/format";
import { countRuns } from "../data/runs";

const GROUPS: Record<string, string> = {
  capture: "Capture",
  passes: "Passes",
  lowering: "Lowering",
  schedule: "Schedule",
  code: "Code",
};

export interface Counts {
  added: number;
  removed: number;
  replaced: number;
}

/** How many nodes or steps a stage changed; null where it has no stage to compare with. */
export function countChanges(stage: StageInfo): Counts | null {
  if (stage.delta === null) return null;
  if (stage.kind === "loop_ir") {
    const { added, removed } = stage.delta as StepDelta;
    return { added: added.length, removed: removed.length, replaced: 0 };
  }
  const { added, removed, replaced } = stage.delta as GraphDelta;
  return {
    added: countRuns(added),
    removed: countRuns(removed),
    replaced: replaced.reduce((sum, { after }) => sum + after.length, 0),
  };
}

function isEmpty(counts: Counts | null): boolean {
  return counts !== null && counts.added + counts.removed + counts.replaced === 0;
}

export function ChangeCounts({ counts }: { counts: Counts }): JSX.Element {
  return (
    <span class="change-counts">
      {counts.added > 0 && <span class="added-text">+{counts.added}</span>}
      {counts.replaced > 0 && <span class="replaced-text">~{counts.replaced}</span>}
      {counts.removed > 0 && <span class="removed-text">−{counts.removed}</span>}
    </span>
  );
}

function StageButton({ index, stage }: { index: number; stage: StageInfo }): JSX.Element {
  const state = useView();
  const button = useRef<HTMLButtonElement>(null);
  const isCurrent = state.stage.value === index;
  const counts = countChanges(stage);
  const empty = isEmpty(counts);
  useEffect(() => {
    const element = button.current;
    const strip = element?.closest<HTMLElement>(".stages");
    if (!isCurrent || !element || !strip) return;
    const left = element.offsetLeft - strip.offsetLeft;
    if (left < strip.scrollLeft + 80 || left + element.offsetWidth > strip.scrollLeft + strip.clientWidth - 80) {
      strip.scrollLeft = left - strip.clientWidth / 2 + element.offsetWidth / 2;
    }
  }, [isCurrent]);
  const failed = stage.check !== null && !stage.check.agrees;
  const summary =
    counts === null ? stage.detail : empty ? "no changes" : `${counts.added} added, ${counts.replaced} replaced, ${counts.removed} removed`;
  return (
    <button
      ref={button}
      type="button"
      class={`stage${empty ? " unchanged" : ""}${failed ? " failed" : ""}`}
      aria-current={isCurrent ? "step" : undefined}
      aria-label={`Stage ${index + 1}, ${stage.name}: ${summary}${failed ? "; results differ" : ""}`}
      title={`${stage.name}: ${summary}`}
      tabIndex={isCurrent ? 0 : -1}
      onClick={() => state.goTo(index)}
    >
      <span class="stage-name">{stage.name}</span>
      <span class="stage-note">
        {failed && <span class="removed-text">≠ </span>}
        {counts !== null && !empty ? <ChangeCounts counts={counts} /> : empty ? "·" : (stage.counts.nodes ?? stage.counts.steps ?? stage.counts.kernels ?? "")}
      </span>
    </button>
  );
}

function Facts({ stage, index, count }: { stage: StageInfo; index: number; count: number }): JSX.Element {
  const counts = countChanges(stage);
  const options = Object.entries(stage.options);
  const { check } = stage;
  return (
    <dl class="stage-facts" aria-live="polite">
      <div class="fact-name">
        <dt>
          {GROUPS[stage.group] ?? stage.group} {index + 1}/{count}
        </dt>
        <dd>{stage.name}</dd>
      </div>
      {stage.seconds !== null && (
        <div>
          <dt>time</dt>
          <dd>{seconds(stage.seconds)}</dd>
        </div>
      )}
      {stage.changes !== null && (
        <div>
          <dt>changes</dt>
          <dd>{stage.changes}</dd>
        </div>
      )}
      {counts !== null && (
        <div>
          <dt>{stage.kind === "loop_ir" ? "steps" : "nodes"}</dt>
          <dd>
            {stage.counts.nodes ?? stage.counts.steps ?? ""} {isEmpty(counts) ? "" : <ChangeCounts counts={counts} />}
          </dd>
        </div>
      )}
      {check !== null && (
        <div title={`${check.text}; largest value ${value(check.largest)}, at ${check.where}`}>
          <dt>largest difference</dt>
          <dd class={check.agrees ? "" : "removed-text"}>
            {check.difference === 0 ? "0, bit for bit" : value(check.difference)}
            {check.agrees ? "" : " – does not agree"}
          </dd>
        </div>
      )}
      {stage.detail !== "" && (
        <div>
          <dt>state</dt>
          <dd>{stage.detail}</dd>
        </div>
      )}
      {options.length > 0 && (
        <div class="fact-options" title={options.map(([name, text]) => `${name} = ${text}`).join("\n")}>
          <dt>options</dt>
          <dd>{options.map(([name, text]) => `${name}=${text}`).join(", ")}</dd>
        </div>
      )}
    </dl>
  );
}

export function Timeline(): JSX.Element | null {
  const state = useView();
  const { stages } = state.view;
  const current = state.stage.value;
  if (stages.length === 0) return null;
  const groups: { name: string; members: number[] }[] = [];
  stages.forEach((stage, i) => {
    const last = groups[groups.length - 1];
    if (last && last.name === stage.group) last.members.push(i);
    else groups.push({ name: stage.group, members: [i] });
  });
  const jump = (by: number): void => {
    for (let i = current + by; i >= 0 && i < stages.length; i += by) {
      if (!isEmpty(countChanges(stages[i]))) return state.goTo(i);
    }
  };
  return (
    <nav class="timeline" aria-label="Stages">
      <div class="steppers">
        <button type="button" class="icon" aria-label="Previous stage" title="Previous stage (←)" disabled={current === 0} onClick={() => state.step(-1)}>
          ‹
        </button>
        <button
          type="button"
          class="icon"
          aria-label="Next stage"
          title="Next stage (→)"
          disabled={current === stages.length - 1}
          onClick={() => state.step(1)}
        >
          ›
        </button>
        <button type="button" class="icon" aria-label="Previous stage with changes" title="Previous stage with changes (Shift ←)" onClick={() => jump(-1)}>
          «
        </button>
        <button type="button" class="icon" aria-label="Next stage with changes" title="Next stage with changes (Shift →)" onClick={() => jump(1)}>
          »
        </button>
      </div>
      <div class="stages">
        {groups.map(({ name, members }) => (
          <div class="stage-group" key={`${name}${members[0]}`} role="group" aria-label={GROUPS[name] ?? name}>
            <span class="stage-group-name">{GROUPS[name] ?? name}</span>
            <div class="stage-row">
              {members.map((i) => (
                <StageButton key={i} index={i} stage={stages[i]} />
              ))}
            </div>
          </div>
        ))}
      </div>
      <Facts stage={stages[current]} index={current} count={stages.length} />
      <span class="sr-only">{plural(stages.length, "stage")}</span>
    </nav>
  );
}

/** The keys that step from anywhere on the page. */
export function nextWithChanges(stages: readonly StageInfo[], current: number, by: number): number {
  for (let i = current + by; i >= 0 && i < stages.length; i += by) if (!isEmpty(countChanges(stages[i]))) return i;
  return current;
}
