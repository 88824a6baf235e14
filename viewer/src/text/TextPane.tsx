// Text of the graph, the loop IR or the emitted code, with what is selected and what the step changed.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { useView } from "../context";
import { plural } from "../data/format";
import type { Linked, Seed } from "../data/program_view";
import { Pane } from "../panes/Pane";
import { hasAssembly, recall, remember, type PaneName } from "../state";
import { Code } from "./Code";
import { rowsOf, type Mode, type Row } from "./rows";
import { VirtualText } from "./VirtualText";

type Kind = "graph" | "loop_ir" | "code" | "assembly";

const TITLES: Record<Kind, string> = { graph: "Program", loop_ir: "Loop IR", code: "Code", assembly: "Assembly" };
const PANES: Record<Kind, PaneName> = { graph: "program", loop_ir: "loop_ir", code: "code", assembly: "assembly" };
const MODES: [Mode, string][] = [
  ["text", "Text"],
  ["diff", "Diff"],
  ["changes", "Changes"],
];

function isLinked(kind: Kind, row: Row, linked: Linked | null): boolean {
  if (linked === null || row.link < 0 || row.change === "removed") return false;
  if (kind === "graph") return linked.nodes.has(row.link);
  return kind === "loop_ir" ? linked.origins.has(row.link) : linked.kernels.has(row.link);
}

/** The line of the C text that each line of machine code comes from. */
function decodeSources(runs: readonly number[] = []): number[] {
  const found: number[] = [];
  for (let i = 0; i + 1 < runs.length; i += 2) for (let count = 0; count < runs[i + 1]; count++) found.push(runs[i]);
  return found;
}

export function TextPane({ kind }: { kind: Kind }): JSX.Element {
  const state = useView();
  const { program, view } = state;
  const current = state.stage.value;
  const isCode = kind === "code" || kind === "assembly";
  const stage = program.stageOfKind(isCode ? "code" : kind, current);
  const [chosen, choose] = useState(0);
  const [mode, setMode] = useState<Mode>(() => recall<Mode>(`mode.${kind}`, "diff"));
  // The machine code of a stage has a pane of its own.
  const texts = view.stages[stage]?.texts ?? [];
  const own = texts.flatMap(({ language }, i) => ((language === "assembly") === (kind === "assembly") ? [i] : []));
  const text = own[Math.min(chosen, Math.max(0, own.length - 1))] ?? -1;
  const isCurrent = stage === current;
  const shownMode = isCurrent ? mode : "text";
  const found = useMemo(
    () => (stage < 0 || text < 0 ? null : rowsOf(program, stage, text, shownMode)),
    [program, stage, text, shownMode],
  );
  const sources = useMemo(() => decodeSources(texts[text]?.sources), [stage, text]);
  const linked = state.linked.value;
  const seed = state.seed.value;
  /** The line of the C text that a row is, or comes from; -1 where that is not known. */
  const sourceOf = (row: Row): number => (kind === "assembly" ? (sources[row.number - 1] ?? -1) : text === 0 && kind === "code" ? row.number - 1 : -1);
  const chosenLine = seed?.kind === "kernel" ? (seed.line ?? -1) : -1;
  const isChosen = (row: Row): boolean => chosenLine >= 0 && sourceOf(row) === chosenLine;
  const firstLinked = useMemo(() => {
    if (found === null) return -1;
    const exact = chosenLine < 0 ? -1 : found.rows.findIndex((row) => isChosen(row) && isLinked(kind, row, linked));
    const any = exact >= 0 || chosenLine < 0 ? exact : found.rows.findIndex(isChosen);
    return any >= 0 ? any : found.rows.findIndex((row) => isLinked(kind, row, linked));
  }, [found, linked, chosenLine]);
  if (found === null || stage < 0) {
    return (
      <Pane name={PANES[kind]} title={TITLES[kind]}>
        <p class="empty">This view has no {TITLES[kind].toLowerCase()}.</p>
      </Pane>
    );
  }
  const { rows } = found;
  const language = texts[text]?.language ?? "c";
  const onClick = (row: Row) => (): void => {
    const graph = state.graphStage.value;
    let next: Seed;
    if (kind === "graph") {
      const id = graph?.byIndex.get(row.link)?.[0];
      const path = id === undefined || !graph ? "" : graph.graphs[graph.instances[id].graph].path;
      next = { kind: "node", index: row.link, graph: path };
    } else if (kind === "loop_ir") next = { kind: "origin", origin: row.link };
    else if (hasAssembly(view) && sourceOf(row) >= 0) next = { kind: "kernel", kernel: row.link, line: sourceOf(row) };
    else next = { kind: "kernel", kernel: row.link };
    state.select(next);
  };
  const body = kind === "graph" || firstLinked >= 0 ? -1 : rows.findIndex((row) => row.link >= 0);
  const change = isCurrent ? found.firstChange : -1;
  const scroll = firstLinked >= 0 ? firstLinked : change >= 0 ? change : seed === null ? body : -1;
  const info = view.stages[stage];
  const controls = (
    <>
      {own.length > 1 && (
        <select aria-label="File" value={own.indexOf(text)} onChange={(event) => choose(Number(event.currentTarget.value))}>
          {own.map((at, i) => (
            <option key={i} value={i}>
              {texts[at].name}
            </option>
          ))}
        </select>
      )}
      {found.added + found.removed > 0 && (
        <span class="diff-counts" title="Lines that the step added and removed">
          <span class="added-text">+{found.added}</span> <span class="removed-text">−{found.removed}</span>
        </span>
      )}
      {!isCode && (
        <span class="segmented" role="group" aria-label="What the text shows">
          {MODES.map(([name, title]) => (
            <button
              key={name}
              type="button"
              aria-pressed={mode === name}
              disabled={!isCurrent || !(program.previousOfKind(stage) >= 0)}
              onClick={() => {
                setMode(name);
                remember(`mode.${kind}`, name);
              }}
            >
              {title}
            </button>
          ))}
        </span>
      )}
    </>
  );
  const name = own.length === 1 && isCode ? texts[text].name : info.name;
  return (
    <Pane name={PANES[kind]} title={TITLES[kind]} note={`${name} · ${plural(rows.length, "line")}`} controls={controls}>
      <VirtualText
        label={`${TITLES[kind]}: ${name}`}
        count={rows.length}
        columns={found.columns}
        gutterColumns={Math.max(3, String(rows.length).length) + 2}
        scrollTo={{ line: scroll, serial: `${stage}/${text}/${shownMode}/${JSON.stringify(seed)}` }}
        text={(i) => (rows[i].change === "folded" ? "" : program.lineText(rows[i].line))}
        content={rows}
        line={(i, matches, current) => {
          const row = rows[i];
          if (row.change === "folded") {
            return { className: "folded", gutter: "", content: `⋯ ${plural(row.line, "line")} the same`, onClick: null };
          }
          const sign = row.change === "added" ? "+" : row.change === "removed" ? "−" : " ";
          return {
            className: `${row.change}${isLinked(kind, row, linked) ? " linked" : ""}${isChosen(row) ? " chosen" : ""}`,
            gutter: `${row.number === 0 ? "" : row.number} ${sign}`,
            content: <Code text={program.lineText(row.line)} language={language} matches={matches} current={current} />,
            onClick: row.link >= 0 && row.change !== "removed" ? onClick(row) : null,
          };
        }}
      />
    </Pane>
  );
}
