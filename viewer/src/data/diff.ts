// A line diff: unique common lines are anchors (patience diff), and small gaps between them are compared exactly.

export type Change = "same" | "added" | "removed";

export interface DiffLine {
  change: Change;
  /** Places in the two texts, -1 where a line is not in one. */
  before: number;
  after: number;
}

const EXACT = 250_000;

/** A part of a text. */
interface Range {
  keys: readonly number[];
  start: number;
  end: number;
}

/** The lines of both texts in order. Texts are lists of keys; lines are equal where their keys are. */
export function diffLines(before: readonly number[], after: readonly number[]): DiffLine[] {
  const lines: DiffLine[] = [];
  compare({ keys: before, start: 0, end: before.length }, { keys: after, start: 0, end: after.length }, lines);
  return lines;
}

function compare(before: Range, after: Range, lines: DiffLine[]): void {
  const shorter = Math.min(before.end - before.start, after.end - after.start);
  const same = (i: number, k: number): boolean => before.keys[i] === after.keys[k];
  let head = 0;
  while (head < shorter && same(before.start + head, after.start + head)) head++;
  let tail = 0;
  while (tail < shorter - head && same(before.end - tail - 1, after.end - tail - 1)) tail++;
  const inside = (range: Range): Range => ({ ...range, start: range.start + head, end: range.end - tail });
  addSame(before.start, after.start, head, lines);
  compareInside(inside(before), inside(after), lines);
  addSame(before.end - tail, after.end - tail, tail, lines);
}

function addSame(before: number, after: number, count: number, lines: DiffLine[]): void {
  for (let i = 0; i < count; i++) lines.push({ change: "same", before: before + i, after: after + i });
}

/** Of ranges that neither begin nor end alike. */
function compareInside(before: Range, after: Range, lines: DiffLine[]): void {
  const anchors = findAnchors(before, after);
  if (anchors.length === 0) {
    if ((before.end - before.start) * (after.end - after.start) <= EXACT) compareExactly(before, after, lines);
    else {
      for (let i = before.start; i < before.end; i++) lines.push({ change: "removed", before: i, after: -1 });
      for (let k = after.start; k < after.end; k++) lines.push({ change: "added", before: -1, after: k });
    }
    return;
  }
  let [i, k] = [before.start, after.start];
  for (const [inBefore, inAfter] of anchors) {
    compare({ ...before, start: i, end: inBefore }, { ...after, start: k, end: inAfter }, lines);
    addSame(inBefore, inAfter, 1, lines);
    [i, k] = [inBefore + 1, inAfter + 1];
  }
  compare({ ...before, start: i }, { ...after, start: k }, lines);
}

/** Where each key of a range is; -1 for keys that are there more than once. */
function findPlaces({ keys, start, end }: Range): Map<number, number> {
  const places = new Map<number, number>();
  for (let i = start; i < end; i++) places.set(keys[i], places.has(keys[i]) ? -1 : i);
  return places;
}

/** The longest increasing sequence of lines that are in both ranges exactly once. */
function findAnchors(before: Range, after: Range): [number, number][] {
  const places = findPlaces(before);
  const pairs: [number, number][] = [];
  for (const [key, inAfter] of findPlaces(after)) {
    const inBefore = places.get(key) ?? -1;
    if (inAfter >= 0 && inBefore >= 0) pairs.push([inBefore, inAfter]);
  }
  // Map keeps the order of `after`; a longest increasing subsequence of the places in `before` remains.
  const tails: number[] = [];
  const previous = new Array<number>(pairs.length).fill(-1);
  pairs.forEach(([inBefore], i) => {
    let low = 0;
    let high = tails.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[tails[middle]][0] < inBefore) low = middle + 1;
      else high = middle;
    }
    if (low > 0) previous[i] = tails[low - 1];
    tails[low] = i;
  });
  const chosen: [number, number][] = [];
  for (let i = tails.length > 0 ? tails[tails.length - 1] : -1; i >= 0; i = previous[i]) chosen.push(pairs[i]);
  return chosen.reverse();
}

/** A longest common subsequence. */
function compareExactly(before: Range, after: Range, lines: DiffLine[]): void {
  const rows = before.end - before.start;
  const columns = after.end - after.start;
  const width = columns + 1;
  const same = (i: number, k: number): boolean => before.keys[before.start + i] === after.keys[after.start + k];
  const common = new Int32Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i--) {
    for (let k = columns - 1; k >= 0; k--) {
      common[i * width + k] = same(i, k)
        ? common[(i + 1) * width + k + 1] + 1
        : Math.max(common[(i + 1) * width + k], common[i * width + k + 1]);
    }
  }
  let i = 0;
  let k = 0;
  while (i < rows || k < columns) {
    if (i < rows && k < columns && same(i, k)) {
      lines.push({ change: "same", before: before.start + i++, after: after.start + k++ });
    } else if (i < rows && (k === columns || common[(i + 1) * width + k] >= common[i * width + k + 1])) {
      lines.push({ change: "removed", before: before.start + i++, after: -1 });
    } else {
      lines.push({ change: "added", before: -1, after: after.start + k++ });
    }
  }
}

/** A diff with runs of more than `2 * context` equal lines folded to their ends; a number stands for lines left out. */
export function foldSame(lines: readonly DiffLine[], context: number): (DiffLine | number)[] {
  const folded: (DiffLine | number)[] = [];
  for (let i = 0; i < lines.length; ) {
    if (lines[i].change !== "same") {
      folded.push(lines[i++]);
      continue;
    }
    let end = i;
    while (end < lines.length && lines[end].change === "same") end++;
    const head = i === 0 ? 0 : context;
    const tail = end === lines.length ? 0 : context;
    if (end - i > head + tail + 1) {
      folded.push(...lines.slice(i, i + head), end - i - head - tail, ...lines.slice(end - tail, end));
    } else {
      folded.push(...lines.slice(i, end));
    }
    i = end;
  }
  return folded;
}
