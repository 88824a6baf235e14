import type { Runs } from "./contract";

/** The indexes that runs stand for. */
export function decodeRuns(runs: Runs): number[] {
  const indexes: number[] = [];
  for (let i = 0; i + 1 < runs.length; i += 2) {
    for (let k = 0; k < runs[i + 1]; k++) indexes.push(runs[i] + k);
  }
  return indexes;
}

/** How many indexes runs stand for. */
export function countRuns(runs: Runs): number {
  let count = 0;
  for (let i = 1; i < runs.length; i += 2) count += runs[i];
  return count;
}
