import type { JSX, TargetedKeyboardEvent, VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useView } from "./context";
import { GraphPane } from "./graph/GraphPane";
import { CATEGORIES } from "./graph/categories";
import { Details } from "./panes/Details";
import { GraphPair } from "./panes/GraphPair";
import { Outline } from "./panes/Outline";
import { Split } from "./panes/Split";
import { nextWithChanges, Timeline } from "./panes/Timeline";
import { DimsPanel } from "./plots/DimsPanel";
import { MemoryPanel } from "./plots/MemoryPanel";
import { ProfilePanel } from "./plots/ProfilePanel";
import { WeightsPanel } from "./plots/WeightsPanel";
import { QuantizationPanel } from "./plots/QuantizationPanel";
import { titlesOf } from "./data/contract";
import { plural } from "./data/format";
import { hasAssembly, type PaneName, type Tab } from "./state";
import { choose, theme, type Theme } from "./theme";
import { SourcePane } from "./text/SourcePane";
import { TextPane } from "./text/TextPane";

const PANES: [PaneName, string][] = [
  ["outline", "Outline"],
  ["details", "Details"],
  ["graph", "Graph"],
  ["source", "Source"],
  ["program", "Program"],
  ["loop_ir", "Loop IR"],
  ["code", "Code"],
  ["assembly", "Assembly"],
];

const NODES: Record<PaneName, () => VNode> = {
  outline: () => <Outline />,
  details: () => <Details />,
  graph: () => <GraphPane />,
  source: () => <SourcePane />,
  program: () => <TextPane kind="graph" />,
  loop_ir: () => <TextPane kind="loop_ir" />,
  code: () => <TextPane kind="code" />,
  assembly: () => <TextPane kind="assembly" />,
};

function Column({ name, panes }: { name: string; panes: PaneName[] }): JSX.Element | null {
  const items = panes.map((pane) => ({ key: pane, weight: 1, node: NODES[pane]() }));
  return <Split name={name} direction="column" items={items} />;
}

function ProgramTab(): JSX.Element {
  const state = useView();
  const shown = state.panes.value;
  const column = (name: string, weight: number, panes: PaneName[]): { key: string; weight: number; node: VNode }[] => {
    const visible = panes.filter((pane) => shown[pane]);
    return visible.length === 0 ? [] : [{ key: name, weight, node: <Column name={name} panes={visible} /> }];
  };
  const items = [
    ...column("side", 17, ["outline", "details"]),
    ...column("graph", 33, ["graph"]),
    ...column("text", 25, ["source", "program"]),
    ...column("native", 25, ["loop_ir", "code", "assembly"]),
  ];
  if (items.length === 0) return <p class="empty">All panes are hidden. The buttons at the top show them.</p>;
  return <Split name="columns" direction="row" items={items} />;
}

function Header(): JSX.Element {
  const state = useView();
  const { view } = state;
  const search = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      const isTyping = target.matches("input, select, textarea");
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/" && !isTyping) {
        event.preventDefault();
        search.current?.focus();
        search.current?.select();
      } else if (isTyping || target.getAttribute("role") === "separator") return;
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        if (state.tab.value !== "program" || target.closest(".virtual-text, [role=tree], [role=tablist]")) return;
        event.preventDefault();
        const by = event.key === "ArrowRight" ? 1 : -1;
        if (event.shiftKey) state.goTo(nextWithChanges(view.stages, state.stage.value, by));
        else state.step(by);
      } else if (event.key === "Escape") {
        state.query.value = "";
        state.select(null);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const { tabs } = state;
  const onTabKey = (event: TargetedKeyboardEvent<HTMLDivElement>): void => {
    const at = tabs.findIndex(([name]) => name === state.tab.value);
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (by === 0) return;
    event.preventDefault();
    const [next] = tabs[(at + by + tabs.length) % tabs.length];
    state.tab.value = next;
    event.currentTarget.querySelector<HTMLElement>(`[data-tab=${next}]`)?.focus();
  };
  const query = state.query.value;
  return (
    <header class="top">
      <h1 title={view.reference}>
        <span class="brand">Ingot</span> {view.title}
        {view.compare && <span class="muted"> beside {titlesOf(view)[1]}</span>}
      </h1>
      <div class="tabs" role="tablist" aria-label="Views" onKeyDown={onTabKey}>
        {tabs.map(([name, title]) => (
          <button
            key={name}
            type="button"
            role="tab"
            data-tab={name}
            aria-selected={state.tab.value === name}
            tabIndex={state.tab.value === name ? 0 : -1}
            onClick={() => (state.tab.value = name)}
          >
            {title}
          </button>
        ))}
      </div>
      {view.notes.length > 0 && (
        <button type="button" class="notes-button" title={view.notes.join("\n")} onClick={() => (state.tab.value = "about")}>
          {plural(view.notes.length, "note")}
        </button>
      )}
      <span class="spacer" />
      {state.tab.value === "program" && (
        <>
          <div class="search">
            <input
              ref={search}
              type="search"
              aria-label="Search by operator, module, line or shape"
              placeholder="Search ( / )"
              title="Words, or op:linear, module:layer.0, line:model.py:12, shape:768, name:add; /a|b/ is a regular expression"
              value={query}
              onInput={(event) => {
                state.query.value = event.currentTarget.value;
                if (!state.panes.value.outline) state.togglePane("outline");
              }}
              onKeyDown={(event) => {
                if (event.key === "Escape") {
                  state.query.value = "";
                  event.currentTarget.blur();
                } else if (event.key === "Enter" && state.hits.value.length > 0) {
                  nextHit(state, event.shiftKey ? -1 : 1);
                }
              }}
            />
            {query.trim() !== "" && (
              <span class="search-count" aria-live="polite">
                {state.hits.value.length}
              </span>
            )}
          </div>
          <div class="pane-switches segmented" role="group" aria-label="Panes">
            {PANES.filter(([name]) => name !== "assembly" || hasAssembly(view)).map(([name, title]) => (
              <button
                key={name}
                type="button"
                aria-pressed={state.panes.value[name]}
                title={`${state.panes.value[name] ? "Hide" : "Show"} ${title}`}
                onClick={() => state.togglePane(name)}
              >
                {title}
              </button>
            ))}
          </div>
        </>
      )}
      <label class="theme">
        <span class="sr-only">Theme</span>
        <select
          aria-label="Theme"
          value={theme.value}
          onChange={(event) => choose(event.currentTarget.value as Theme)}
        >
          <option value="system">System</option>
          <option value="light">Light</option>
          <option value="dark">Dark</option>
        </select>
      </label>
    </header>
  );
}

function nextHit(state: ReturnType<typeof useView>, by: number): void {
  const stage = state.graphStage.value;
  if (stage === null) return;
  const hits = state.hits.value;
  const selected = [...(state.linked.value?.nodes ?? [])][0];
  const at = hits.findIndex((id) => stage.instances[id].index === selected);
  const next = hits[(at + by + hits.length) % hits.length] ?? hits[0];
  const { index, graph } = stage.instances[next];
  state.select({ kind: "node", index, graph: stage.graphs[graph].path });
}

const KEYS: [string, string][] = [
  ["← →", "previous, next stage; with Shift, the one with changes"],
  ["/", "search; Enter goes to the next node found"],
  ["↑ ↓", "in the graph: follow inputs and users"],
  ["Enter, Backspace", "in the graph: open or close the box; close the box around"],
  ["+ − 0", "in the graph: zoom, fit"],
  ["W A S D", "in the graph: move"],
  ["Ctrl+F", "in a text: find; Enter, Shift+Enter: next, previous; Esc: close"],
  ["Esc", "clear the selection and the search"],
];

function AboutPanel(): JSX.Element {
  const { view } = useView();
  const { compare } = view;
  return (
    <div class="panel about">
      <section>
        <h2>{view.title}</h2>
        <dl class="fields wide">
          {(
            [
              ["from", view.reference],
              ["Ingot", view.version],
              ...view.facts,
            ] as [string, string][]
          ).map(([label, text], i) => (
            <div class="field" key={i}>
              <dt>{label}</dt>
              <dd>{text}</dd>
            </div>
          ))}
        </dl>
        {view.notes.length > 0 && (
          <ul class="notes">
            {view.notes.map((note, i) => (
              <li key={i}>{note}</li>
            ))}
          </ul>
        )}
      </section>
      {compare && (
        <section>
          <h2>{compare.title}</h2>
          <dl class="fields wide">
            {([["from", compare.reference], ...compare.facts] as [string, string][]).map(([label, text], i) => (
              <div class="field" key={i}>
                <dt>{label}</dt>
                <dd>{text}</dd>
              </div>
            ))}
          </dl>
        </section>
      )}
      <section>
        <h2>Keys</h2>
        <dl class="fields wide">
          {KEYS.map(([keys, text]) => (
            <div class="field" key={keys}>
              <dt>
                <kbd>{keys}</kbd>
              </dt>
              <dd>{text}</dd>
            </div>
          ))}
        </dl>
      </section>
      <section>
        <h2>Colors</h2>
        <ul class="legend">
          {CATEGORIES.map(([name, text]) => (
            <li key={name}>
              <span class={`dot c-${name}`} /> {text}
            </li>
          ))}
          <li>
            <span class="added-text sign">+</span> added
          </li>
          <li>
            <span class="replaced-text sign">~</span> replaced, or its loops are new
          </li>
          <li>
            <span class="removed-text sign">−</span> removed
          </li>
        </ul>
      </section>
    </div>
  );
}

export function App(): JSX.Element {
  const state = useView();
  const tab = state.tab.value;
  const stage = state.stage.value;
  useEffect(() => {
    // Some browsers have no idle callbacks.
    const later = window.requestIdleCallback ?? ((run: () => void) => setTimeout(run, 60));
    later(() => state.warm());
  }, [stage]);
  const besides: Partial<Record<Tab, () => VNode>> = {
    graphs: () => <GraphPair />,
    profile: () => <ProfilePanel />,
    memory: () => <MemoryPanel />,
    weights: () => <WeightsPanel />,
    quantization: () => <QuantizationPanel />,
    dims: () => <DimsPanel />,
    about: () => <AboutPanel />,
  };
  const panel = besides[tab];
  const items = [
    { key: "panel", weight: 80, node: <div class={tab === "graphs" ? "pair-frame" : "panel-frame"}>{panel?.()}</div> },
    ...(state.panes.value.details && tab !== "about" ? [{ key: "details", weight: 20, node: <Details /> }] : []),
  ];
  return (
    <>
      <Header />
      {tab === "program" && <Timeline />}
      <main class="main" aria-label={tab === "program" ? "Program" : tab}>
        {panel ? <Split key={tab} name="panel" direction="row" items={items} /> : <ProgramTab />}
      </main>
    </>
  );
}
