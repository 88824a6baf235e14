// Positions and tick marks of axes.

export interface Scale {
  at: (value: number) => number;
  ticks: number[];
}

/** A linear scale from 0 or `low` to `high`, with round tick marks. */
export function linear(low: number, high: number, from: number, to: number, count = 5, binary = false): Scale {
  const span = high > low ? high - low : 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const decimal = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough) ?? rough;
  const step = binary ? 2 ** Math.ceil(Math.log2(rough)) : decimal;
  const ticks: number[] = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
  return { at: (value) => from + ((value - low) / span) * (to - from), ticks };
}

/** A logarithmic scale with tick marks at powers of ten. */
export function logarithmic(low: number, high: number, from: number, to: number): Scale {
  const [first, last] = [Math.log10(low), Math.log10(high > low ? high : low * 10)];
  const ticks: number[] = [];
  for (let power = Math.ceil(first); power <= Math.floor(last); power++) ticks.push(10 ** power);
  return { at: (value) => from + ((Math.log10(value) - first) / (last - first)) * (to - from), ticks };
}
