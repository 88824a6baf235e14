// What is known about the selection: a node, a module, a line, a loop or a kernel.

import type { ComponentChildren, JSX } from "preact";
import { useView } from "../context";
import type { NodeInfo, Stats } from "../data/contract";
import { bytes, percent, plural, scaled, seconds, value } from "../data/format";
import type { Instance, Seed } from "../data/program_view";
import { shortTarget } from "../graph/boxes";
import { Histogram } from "../plots/Histogram";
import { NumbersTable } from "./Numbers";
import { Pane } from "./Pane";

function Field({ name, children }: { name: string; children: ComponentChildren }): JSX.Element {
  return (
    <div class="field">
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

const MOST = 24;

function NodeLinks({ instances, ids }: { instances: Instance[]; ids: number[] }): JSX.Element {
  const state = useView();
  const stage = state.graphStage.value;
  if (ids.length === 0) return <span class="muted">none</span>;
  return (
    <ul class="links">
      {ids.slice(0, MOST).map((id) => {
        const { info, index, graph } = instances[id];
        const type = info.type >= 0 ? state.view.types[info.type].text : "";
        return (
          <li key={id}>
            <button
              type="button"
              class="link"
              onClick={() => state.select({ kind: "node", index, graph: stage?.graphs[graph].path ?? "" })}
            >
              {info.name}
            </button>{" "}
            <span class="muted">{type}</span>
          </li>
        );
      })}
      {ids.length > MOST && <li class="muted">and {ids.length - MOST} more</li>}
    </ul>
  );
}

export function PlaceLink({ place }: { place: number }): JSX.Element | null {
  const state = useView();
  const [, file, line] = state.view.places[place] ?? [-1, -1, 0];
  if (file < 0) return <span class="muted">unknown</span>;
  const source = state.view.files[file];
  const text = source.text?.[line - 1] ?? source.lines?.[String(line)] ?? "";
  return (
    <>
      <button type="button" class="link" onClick={() => state.select({ kind: "line", file, line }, false)}>
        {source.name}:{line}
      </button>
      {text !== "" && <code class="source-line">{text.trim()}</code>}
    </>
  );
}

function ModuleLink({ module }: { module: number }): JSX.Element {
  const state = useView();
  const call = state.view.modules[module];
  if (!call || call.path === "") return <span class="muted">{call ? call.type : "none"}</span>;
  return (
    <>
      <button type="button" class="link" onClick={() => state.select({ kind: "module", module })}>
        {call.call}
      </button>{" "}
      <span class="muted">{call.type}</span>
    </>
  );
}

/** The dims in a type with their ranges and the conditions on them. */
function Dims({ info }: { info: NodeInfo }): JSX.Element | null {
  const { view } = useView();
  const dims = (info.type >= 0 ? view.types[info.type].dims : null) ?? [];
  const words = new Set(dims.flatMap((dim) => (typeof dim === "string" ? (dim.match(/[A-Za-z_]\w*/g) ?? []) : [])));
  if (words.size === 0) return null;
  const ranges = view.dims.filter(({ name }) => words.has(name));
  const conditions = view.constraints.filter(({ text }) => (text.match(/[A-Za-z_]\w*/g) ?? []).some((word) => words.has(word)));
  if (ranges.length + conditions.length === 0) return null;
  return (
    <Field name="dims">
      <ul class="links">
        {ranges.map(({ name, text }) => (
          <li key={name}>{text === "" ? name : text}</li>
        ))}
        {conditions.map(({ text, place }, i) => (
          <li key={`c${i}`}>
            {text}
            {place >= 0 && (
              <>
                {" "}
                <PlaceLink place={place} />
              </>
            )}
          </li>
        ))}
      </ul>
    </Field>
  );
}

function Values({ stats }: { stats: Stats }): JSX.Element {
  const odd = [
    stats.nan > 0 ? `${stats.nan} nan` : "",
    stats.inf > 0 ? `${stats.inf} inf` : "",
    stats.zeros > 0 ? plural(stats.zeros, "zero") : "",
  ].filter((text) => text !== "");
  return (
    <Field name="values">
      <table class="pairs">
        <tbody>
          <tr>
            <th scope="row">min</th>
            <td>{value(stats.min)}</td>
            <th scope="row">max</th>
            <td>{value(stats.max)}</td>
          </tr>
          <tr>
            <th scope="row">mean</th>
            <td>{value(stats.mean)}</td>
            <th scope="row">std</th>
            <td>{value(stats.std)}</td>
          </tr>
        </tbody>
      </table>
      <span class="muted">
        {plural(stats.count, "value")}
        {odd.length > 0 ? `, ${odd.join(", ")}` : ""}
      </span>
      {stats.histogram && <Histogram data={stats.histogram} label="Histogram of values" />}
    </Field>
  );
}

function Loops({ origins }: { origins: Iterable<number> }): JSX.Element | null {
  const state = useView();
  const list = [...origins];
  if (list.length === 0) return null;
  return (
    <Field name={list.length === 1 ? "loop" : "loops"}>
      <ul class="links">
        {list.slice(0, MOST).map((origin) => (
          <li key={origin}>
            <button type="button" class="link" onClick={() => state.select({ kind: "origin", origin })}>
              {state.view.origins[origin].text}
            </button>
          </li>
        ))}
        {list.length > MOST && <li class="muted">and {list.length - MOST} more</li>}
      </ul>
    </Field>
  );
}

function Kernels({ kernels }: { kernels: Iterable<number> }): JSX.Element | null {
  const state = useView();
  const list = [...kernels];
  if (list.length === 0) return null;
  return (
    <Field name={list.length === 1 ? "kernel" : "kernels"}>
      <ul class="links">
        {list.slice(0, MOST).map((kernel) => {
          const { name, file, first, last, launches } = state.view.kernels[kernel];
          return (
            <li key={kernel}>
              <button type="button" class="link" onClick={() => state.select({ kind: "kernel", kernel })}>
                {name}
              </button>{" "}
              <span class="muted">
                {first >= 0 ? `${file}:${first + 1}–${last + 1}` : file}
                {launches > 1 ? `, ${plural(launches, "launch")}`.replace("launchs", "launches") : ""}
              </span>
            </li>
          );
        })}
        {list.length > MOST && <li class="muted">and {list.length - MOST} more</li>}
      </ul>
    </Field>
  );
}

function Measured({ fits }: { fits: (launch: { kernel: number; origin: number }) => boolean }): JSX.Element | null {
  const { view } = useView();
  const launches = view.profile?.launches.filter(fits) ?? [];
  if (launches.length === 0) return null;
  const time = launches.reduce((sum, launch) => sum + launch.seconds, 0);
  const flops = launches.reduce((sum, launch) => sum + launch.flops, 0);
  const moved = launches.reduce((sum, launch) => sum + launch.bytes, 0);
  return (
    <Field name="measured">
      {seconds(time)}, {percent(time / Math.max(view.profile!.seconds, 1e-30))} of the call
      <br />
      <span class="muted">
        {scaled(flops / Math.max(time, 1e-30))}FLOP/s, {bytes(moved)} moved
      </span>
    </Field>
  );
}

function NodeDetails({ seed }: { seed: Extract<Seed, { kind: "node" }> }): JSX.Element {
  const state = useView();
  const { view } = state;
  const info = view.nodes[seed.index];
  const stage = state.graphStage.value;
  const linked = state.linked.value;
  const shown = [...(linked?.nodes ?? [])][0];
  const ids = shown === undefined ? [] : (stage?.byIndex.get(shown) ?? []);
  const instance = stage && ids.length > 0 ? stage.instances[ids[0]] : null;
  const here = instance?.info ?? info;
  const stats = view.stats[String(instance?.index ?? seed.index)];
  const replaced = instance ? (stage!.changes.replacing.get(instance.index) ?? []) : [];
  const wasAdded = instance !== null && stage!.changes.added.has(instance.index);
  return (
    <>
      <h3 class="details-title">
        {here.name} <span class="muted">{here.kind}</span>
      </h3>
      <dl class="fields">
        {here.target !== "" && <Field name={here.kind === "operator" ? "operator" : "target"}>{here.kind === "operator" ? here.target : here.target || shortTarget(here)}</Field>}
        {here.alias !== undefined && <Field name="name">{here.alias}</Field>}
        {here.type >= 0 && (
          <Field name="type">
            <code>{view.types[here.type].text}</code>
          </Field>
        )}
        <Dims info={here} />
        <Field name="source">
          <PlaceLink place={here.place} />
        </Field>
        <Field name="module">
          <ModuleLink module={view.places[here.place]?.[0] ?? -1} />
        </Field>
        <NumbersTable seed={seed} node={here} graph={instance ? stage!.graphs[instance.graph].path : seed.graph} />
        {replaced.length > 0 && (
          <Field name="replaces">
            <ul class="links">
              {replaced.slice(0, MOST).map((index) => (
                <li key={index}>
                  <code class="removed-text">{view.nodes[index].text}</code>
                </li>
              ))}
            </ul>
          </Field>
        )}
        {wasAdded && <Field name="change">added by this step</Field>}
        {instance === null && <Field name="change">not in this stage</Field>}
        {instance && (
          <>
            <Field name={plural(instance.inputs.length, "input")}>
              <NodeLinks instances={stage!.instances} ids={instance.inputs} />
            </Field>
            <Field name={plural(instance.users.length, "user")}>
              <NodeLinks instances={stage!.instances} ids={instance.users} />
            </Field>
          </>
        )}
        <Field name="text">
          <code>{here.text}</code>
        </Field>
        {stats && <Values stats={stats} />}
        {state.selectedWeight.value !== null && state.tab.value !== "weights" && (
          <Field name="weight">
            <button type="button" class="link" onClick={() => (state.tab.value = "weights")}>
              every value
            </button>
          </Field>
        )}
        <Loops origins={linked?.origins ?? []} />
        <Kernels kernels={linked?.kernels ?? []} />
        <Measured fits={({ origin }) => linked?.origins.has(origin) ?? false} />
      </dl>
    </>
  );
}

function Operators({ nodes }: { nodes: Set<number> }): JSX.Element | null {
  const { view } = useView();
  const counts = new Map<string, number>();
  for (const index of nodes) {
    const info = view.nodes[index];
    if (info.kind !== "operator" && info.kind !== "call") continue;
    counts.set(shortTarget(info), (counts.get(shortTarget(info)) ?? 0) + 1);
  }
  if (counts.size === 0) return null;
  const list = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  return (
    <Field name="operators">
      {list.slice(0, MOST).map(([name, count]) => (
        <span class="chip" key={name}>
          {name}
          {count > 1 ? ` ×${count}` : ""}
        </span>
      ))}
    </Field>
  );
}

function OtherDetails({ seed }: { seed: Exclude<Seed, { kind: "node" }> }): JSX.Element {
  const state = useView();
  const { view } = state;
  const stage = state.graphStage.value;
  const linked = state.linked.value!;
  const ids = [...linked.nodes].flatMap((index) => stage?.byIndex.get(index) ?? []);
  let title = "";
  let kind = "";
  const fields: JSX.Element[] = [];
  if (seed.kind === "line") {
    title = `${view.files[seed.file].name}:${seed.line}`;
    kind = "line";
  } else if (seed.kind === "module") {
    const call = view.modules[seed.module];
    title = call.call === "" ? view.title : call.call;
    kind = "module";
    fields.push(
      <Field key="type" name="type">
        {call.type}
      </Field>,
    );
  } else if (seed.kind === "origin") {
    const origin = view.origins[seed.origin];
    title = origin.op;
    kind = "loop";
    fields.push(
      <Field key="source" name="source">
        <PlaceLink place={origin.place} />
      </Field>,
    );
    if (origin.module !== "") {
      fields.push(
        <Field key="module" name="module">
          {origin.module}
        </Field>,
      );
    }
  } else {
    const kernel = view.kernels[seed.kernel];
    title = kernel.name;
    kind = "kernel";
    fields.push(
      <Field key="file" name="code">
        {kernel.file}
        {kernel.first >= 0 ? `:${kernel.first + 1}–${kernel.last + 1}` : ""}, launched {kernel.launches === 1 ? "once" : `${kernel.launches} times`}
      </Field>,
    );
  }
  const kernel = seed.kind === "kernel" ? seed.kernel : -1;
  return (
    <>
      <h3 class="details-title">
        {title} <span class="muted">{kind}</span>
      </h3>
      <dl class="fields">
        {fields}
        <NumbersTable seed={seed} node={null} graph="" />
        <Field name={plural(ids.length, "node")}>
          <NodeLinks instances={stage?.instances ?? []} ids={ids} />
        </Field>
        <Operators nodes={linked.nodes} />
        <Loops origins={linked.origins} />
        {kernel < 0 && <Kernels kernels={linked.kernels} />}
        <Measured fits={(launch) => (kernel >= 0 ? launch.kernel === kernel : linked.origins.has(launch.origin))} />
      </dl>
    </>
  );
}

function Overview(): JSX.Element {
  const { view } = useView();
  return (
    <>
      <h3 class="details-title">{view.title}</h3>
      <p class="muted small-text">{view.reference}</p>
      {view.notes.length > 0 && (
        <ul class="notes">
          {view.notes.map((note, i) => (
            <li key={i}>{note}</li>
          ))}
        </ul>
      )}
      <dl class="fields">
        {view.facts.map(([label, text], i) => (
          <Field key={i} name={label}>
            {text}
          </Field>
        ))}
        {view.inputs.map(({ name, path, type }, i) => (
          <Field key={`i${i}`} name={i === 0 ? "inputs" : ""}>
            {path === "" ? name : path} <span class="muted">{type === null || type < 0 ? "" : view.types[type].text}</span>
          </Field>
        ))}
        {view.outputs.map(({ name, path, type }, i) => (
          <Field key={`o${i}`} name={i === 0 ? "outputs" : ""}>
            {path === "" ? name : path} <span class="muted">{type === null || type < 0 ? "" : view.types[type].text}</span>
          </Field>
        ))}
      </dl>
      <p class="hint">Select a node, a line, a loop or a kernel: every pane shows what belongs to it.</p>
    </>
  );
}

export function Details(): JSX.Element {
  const state = useView();
  const seed = state.seed.value;
  const controls = seed !== null && (
    <button type="button" onClick={() => state.select(null)}>
      Clear
    </button>
  );
  return (
    <Pane name="details" title={seed === null ? "About" : "Selection"} controls={controls}>
      <div class="details" tabIndex={0} role="region" aria-label="Details of the selection">
        {seed === null ? <Overview /> : seed.kind === "node" ? <NodeDetails seed={seed} /> : <OtherDetails seed={seed} />}
      </div>
    </Pane>
  );
}
