// The rows of a text pane: the lines of a stage, alone or with what the step changed.

import { diffLines, foldSame, type Change } from "../data/diff";
import { decodeRuns } from "../data/runs";
import type { ProgramView } from "../data/program_view";
import type { StageInfo } from "../data/contract";

export type Mode = "text" | "diff" | "changes";

export interface Row {
  change: Change | "folded";
  /** Index in the pool of lines, or how many lines are folded. */
  line: number;
  number: number;
  link: number;
}

export interface TextRows {
  rows: Row[];
  columns: number;
  added: number;
  removed: number;
  firstChange: number;
  /** Whether there is a stage to compare with. */
  compared: boolean;
}

const KEPT = 24;
const kept = new Map<string, TextRows>();

/** The rows of one text of a stage, kept for when they are shown again. */
export function rowsOf(program: ProgramView, stage: number, text: number, mode: Mode): TextRows {
  const key = `${stage}/${text}/${mode}`;
  let found = kept.get(key);
  if (!found) {
    found = makeRows(program, stage, text, mode);
    if (kept.size >= KEPT) kept.delete(kept.keys().next().value!);
    kept.set(key, found);
  }
  return found;
}

/** Lines are compared with the text of the same place in the stage before. */
export function makeRows(program: ProgramView, stage: number, text: number, mode: Mode): TextRows {
  const { view } = program;
  const info: StageInfo = view.stages[stage];
  const lines = decodeRuns(info.texts[text]?.lines ?? []);
  const previous = program.previousOfKind(stage);
  const compared = previous >= 0 && view.stages[previous].texts[text] !== undefined;
  const row = (change: Change, line: number, number: number): Row => {
    return { change, line, number, link: program.lineLink(line) };
  };
  let rows: Row[] = [];
  let added = 0;
  let removed = 0;
  if (mode === "text" || !compared) {
    rows = lines.map((line, i) => row("same", line, i + 1));
  } else {
    const before = decodeRuns(view.stages[previous].texts[text].lines);
    // Lines with another link but the same text are the same to a reader.
    const key = (line: number): number => view.lines.text[line];
    const compareLines = diffLines(before.map(key), lines.map(key));
    for (const { change } of compareLines) {
      if (change === "added") added++;
      else if (change === "removed") removed++;
    }
    const folded = mode === "changes" ? foldSame(compareLines, 2) : compareLines;
    rows = folded.map((entry) => {
      if (typeof entry === "number") return { change: "folded", line: entry, number: 0, link: -1 };
      if (entry.change === "removed") return row("removed", before[entry.before], 0);
      return row(entry.change, lines[entry.after], entry.after + 1);
    });
  }
  let columns = 0;
  for (const { change, line } of rows) {
    if (change !== "folded") columns = Math.max(columns, program.lineText(line).length);
  }
  // Comments at the head change with everything: the first change of the program itself is what to look at.
  const isChange = ({ change }: Row): boolean => change === "added" || change === "removed";
  const inBody = rows.findIndex((row) => isChange(row) && row.link >= 0);
  const firstChange = inBody >= 0 ? inBody : rows.findIndex(isChange);
  return { rows, columns, added, removed, firstChange, compared };
}
