// A line diff: unique common lines are anchors (patience diff), and small gaps between them are compared exactly.

export type Change = "same" | "added" | "removed";

export interface DiffLine {
  change: Change;
  /** Places in the two texts, -1 where a line is not in one. */
  before: number;
  after: number;
}

const EXACT = 250_000;

/** The lines of both texts in order. Texts are lists of keys; lines are equal where their keys are. */
export function diffLines(before: readonly number[], after: readonly number[]): DiffLine[] {
  const lines: DiffLine[] = [];
  compare(before, 0, before.length, after, 0, after.length, lines);
  return lines;
}

function compare(
  before: readonly number[],
  beforeStart: number,
  beforeEnd: number,
  after: readonly number[],
  afterStart: number,
  afterEnd: number,
  lines: DiffLine[],
): void {
  while (beforeStart < beforeEnd && afterStart < afterEnd && before[beforeStart] === after[afterStart]) {
    lines.push({ change: "same", before: beforeStart++, after: afterStart++ });
  }
  let tail = 0;
  while (
    beforeStart < beforeEnd - tail &&
    afterStart < afterEnd - tail &&
    before[beforeEnd - tail - 1] === after[afterEnd - tail - 1]
  ) {
    tail++;
  }
  const middle = gap(before, beforeStart, beforeEnd - tail, after, afterStart, afterEnd - tail);
  for (const line of middle) lines.push(line);
  for (let i = tail; i > 0; i--) lines.push({ change: "same", before: beforeEnd - i, after: afterEnd - i });
}

function gap(
  before: readonly number[],
  beforeStart: number,
  beforeEnd: number,
  after: readonly number[],
  afterStart: number,
  afterEnd: number,
): DiffLine[] {
  const lines: DiffLine[] = [];
  const anchors = findAnchors(before, beforeStart, beforeEnd, after, afterStart, afterEnd);
  if (anchors.length === 0) {
    const rows = beforeEnd - beforeStart;
    const columns = afterEnd - afterStart;
    if (rows > 0 && columns > 0 && rows * columns <= EXACT) {
      return exact(before, beforeStart, beforeEnd, after, afterStart, afterEnd);
    }
    for (let i = beforeStart; i < beforeEnd; i++) lines.push({ change: "removed", before: i, after: -1 });
    for (let i = afterStart; i < afterEnd; i++) lines.push({ change: "added", before: -1, after: i });
    return lines;
  }
  let fromBefore = beforeStart;
  let fromAfter = afterStart;
  for (const [inBefore, inAfter] of anchors) {
    compare(before, fromBefore, inBefore, after, fromAfter, inAfter, lines);
    lines.push({ change: "same", before: inBefore, after: inAfter });
    fromBefore = inBefore + 1;
    fromAfter = inAfter + 1;
  }
  compare(before, fromBefore, beforeEnd, after, fromAfter, afterEnd, lines);
  return lines;
}

/** The longest increasing sequence of lines that are in both ranges exactly once. */
function findAnchors(
  before: readonly number[],
  beforeStart: number,
  beforeEnd: number,
  after: readonly number[],
  afterStart: number,
  afterEnd: number,
): [number, number][] {
  const seenBefore = new Map<number, number>();
  for (let i = beforeStart; i < beforeEnd; i++) seenBefore.set(before[i], seenBefore.has(before[i]) ? -1 : i);
  const seenAfter = new Map<number, number>();
  for (let i = afterStart; i < afterEnd; i++) seenAfter.set(after[i], seenAfter.has(after[i]) ? -1 : i);
  const pairs: [number, number][] = [];
  for (const [key, inAfter] of seenAfter) {
    const inBefore = seenBefore.get(key);
    if (inAfter >= 0 && inBefore !== undefined && inBefore >= 0) pairs.push([inBefore, inAfter]);
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

function exact(
  before: readonly number[],
  beforeStart: number,
  beforeEnd: number,
  after: readonly number[],
  afterStart: number,
  afterEnd: number,
): DiffLine[] {
  const rows = beforeEnd - beforeStart;
  const columns = afterEnd - afterStart;
  const width = columns + 1;
  const common = new Int32Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i--) {
    for (let k = columns - 1; k >= 0; k--) {
      common[i * width + k] =
        before[beforeStart + i] === after[afterStart + k]
          ? common[(i + 1) * width + k + 1] + 1
          : Math.max(common[(i + 1) * width + k], common[i * width + k + 1]);
    }
  }
  const lines: DiffLine[] = [];
  let i = 0;
  let k = 0;
  while (i < rows || k < columns) {
    if (i < rows && k < columns && before[beforeStart + i] === after[afterStart + k]) {
      lines.push({ change: "same", before: beforeStart + i++, after: afterStart + k++ });
    } else if (i < rows && (k === columns || common[(i + 1) * width + k] >= common[i * width + k + 1])) {
      lines.push({ change: "removed", before: beforeStart + i++, after: -1 });
    } else {
      lines.push({ change: "added", before: -1, after: afterStart + k++ });
    }
  }
  return lines;
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
