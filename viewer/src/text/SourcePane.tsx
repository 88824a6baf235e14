// The user's source: files that nodes come from, with the lines of what is selected.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { useView } from "../context";
import type { SourceFile } from "../data/contract";
import { Pane } from "../panes/Pane";
import { Code } from "./Code";
import { VirtualText } from "./VirtualText";

interface SourceRow {
  number: number;
  text: string;
}

/** The lines of a file that are at hand; number 0 stands for lines left out. */
export function sourceRows(file: SourceFile): SourceRow[] {
  if (file.text !== null) return file.text.map((text, i) => ({ number: i + 1, text }));
  const rows: SourceRow[] = [];
  const entries = Object.entries(file.lines ?? {})
    .map(([number, text]) => ({ number: Number(number), text }))
    .sort((a, b) => a.number - b.number);
  for (const row of entries) {
    const last = rows[rows.length - 1];
    if (last ? row.number > last.number + 1 : row.number > 1) rows.push({ number: 0, text: "⋯" });
    rows.push(row);
  }
  return rows;
}

export function SourcePane(): JSX.Element {
  const state = useView();
  const { view } = state;
  const linked = state.linked.value;
  const used = useMemo(() => {
    const perFile = new Map<number, Map<number, number>>();
    const nodes = state.program.graphStage(0)?.instances.map(({ info }) => info.place) ?? [];
    // A compiled file without its program has loops of kernels only.
    const places = nodes.length > 0 ? nodes : view.origins.map(({ place }) => place);
    for (const place of places) {
      const [, file, line] = view.places[place] ?? [-1, -1, 0];
      if (file < 0) continue;
      const lines = perFile.get(file) ?? new Map<number, number>();
      lines.set(line, (lines.get(line) ?? 0) + 1);
      perFile.set(file, lines);
    }
    return perFile;
  }, [view]);
  const first = useMemo(() => {
    let best = 0;
    let most = -1;
    for (const [file, lines] of used) {
      if (lines.size > most && (view.files[file].text ?? view.files[file].lines) !== null) [best, most] = [file, lines.size];
    }
    return best;
  }, [used]);
  const [file, setFile] = useState(first);
  useEffect(() => {
    if (linked === null || linked.lines.size === 0) return;
    const files = new Set([...linked.lines].map((key) => Number(key.split(":")[0])));
    if (!files.has(file)) setFile(files.values().next().value!);
  }, [linked]);
  const shown = view.files[file];
  const rows = useMemo(() => (shown ? sourceRows(shown) : []), [shown]);
  const columns = useMemo(() => rows.reduce((most, row) => Math.max(most, row.text.length), 0), [rows]);
  const firstLinked = useMemo(() => {
    const at = rows.findIndex(({ number }) => linked?.lines.has(`${file}:${number}`));
    return at >= 0 || linked ? at : rows.findIndex(({ number }) => used.get(file)?.has(number));
  }, [rows, linked]);
  const controls = view.files.length > 1 && (
    <select aria-label="Source file" value={file} onChange={(event) => setFile(Number(event.currentTarget.value))}>
      {view.files.map(({ name }, i) => (
        <option key={i} value={i}>
          {name}
        </option>
      ))}
    </select>
  );
  return (
    <Pane name="source" title="Source" note={view.files.length === 1 ? shown?.name : ""} controls={controls}>
      {rows.length === 0 ? (
        <p class="empty">The text of {shown?.name ?? "the source"} is not at hand.</p>
      ) : (
        <VirtualText
          label={`Source: ${shown.name}`}
          count={rows.length}
          columns={columns}
          gutterColumns={Math.max(3, String(rows[rows.length - 1].number).length) + 2}
          scrollTo={{ line: firstLinked, serial: `${file}/${JSON.stringify(state.seed.value)}` }}
          text={(i) => rows[i].text}
          content={rows}
          line={(i, matches, current) => {
            const { number, text } = rows[i];
            const nodes = used.get(file)?.get(number) ?? 0;
            const isLinked = linked?.lines.has(`${file}:${number}`) ?? false;
            return {
              className: `${isLinked ? "linked " : ""}${number === 0 ? "folded " : ""}${nodes > 0 ? "has-nodes" : ""}`,
              gutter: number === 0 ? "" : `${number} ${nodes > 0 ? "•" : " "}`,
              content: number === 0 ? text : <Code text={text} language="python" matches={matches} current={current} />,
              onClick: nodes > 0 ? () => state.select({ kind: "line", file, line: number }) : null,
            };
          }}
        />
      )}
    </Pane>
  );
}
