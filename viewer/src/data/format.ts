// Numbers as people read them.

export function seconds(value: number | null): string {
  if (value === null) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-6) return `${significant(value * 1e9)} ns`;
  if (value < 1e-3) return `${significant(value * 1e6)} µs`;
  if (value < 1) return `${significant(value * 1e3)} ms`;
  return `${significant(value)} s`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 ? value : significant(value)} ${units[unit]}`;
}

/** A count with a prefix of the SI: 1.2 G. */
export function scaled(value: number): string {
  const units = ["", "k", "M", "G", "T", "P"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${significant(value)}${unit === 0 ? "" : ` ${units[unit]}`}`;
}

export function significant(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toString();
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  return Number(value.toPrecision(3)).toString();
}

export function value(number: number | null): string {
  if (number === null) return "–";
  const size = Math.abs(number);
  if (number === 0 || (size >= 1e-3 && size < 1e6)) return Number(number.toPrecision(5)).toString();
  return number.toExponential(2);
}

export function percent(share: number): string {
  return `${share >= 0.0995 ? (share * 100).toFixed(0) : (share * 100).toFixed(1)}%`;
}

/** A share of the peak. Bytes from a cache may come faster than from memory: how much faster says nothing. */
export function ofPeak(share: number): string {
  return share > 2 ? "> 200%" : percent(share);
}

export function plural(count: number, word: string): string {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}
