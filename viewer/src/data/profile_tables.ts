// Launches of a profile, added up by kernel and by module.

import type { Kernel, Launch, Origin, Profile } from "./contract";

export interface Total {
  key: string;
  depth: number;
  seconds: number;
  flops: number;
  bytes: number;
  launches: number;
  /** The time that the work takes at the machine's limits, over the time it took. */
  peak: number;
  /** The share of the threads' time in which they had nothing to do; null where it is not known. */
  idle: number | null;
  /** Indexes of the launches. */
  members: number[];
}

function empty(key: string, depth: number): Total {
  return { key, depth, seconds: 0, flops: 0, bytes: 0, launches: 0, peak: 0, idle: null, members: [] };
}

function add(total: Total, launch: Launch, index: number): void {
  total.seconds += launch.seconds;
  total.flops += launch.flops;
  total.bytes += launch.bytes;
  total.peak += launch.peak * launch.seconds;
  if (launch.idle !== null) total.idle = (total.idle ?? 0) + launch.idle * launch.seconds;
  total.launches++;
  total.members.push(index);
}

function finish(total: Total): Total {
  total.peak = total.seconds > 0 ? total.peak / total.seconds : 0;
  if (total.idle !== null) total.idle = total.seconds > 0 ? total.idle / total.seconds : 0;
  return total;
}

/** One row per module at most `depth` parts deep, in the order of the tree; a row holds what is below it. */
export function byModule(profile: Profile, origins: readonly Origin[], depth: number): Total[] {
  const totals = new Map<string, Total>();
  const order: string[] = [];
  profile.launches.forEach((launch, i) => {
    const parts = (origins[launch.origin]?.module ?? "").split(".").filter((part) => part !== "");
    for (let length = 0; length <= Math.min(depth, parts.length); length++) {
      const key = parts.slice(0, length).join(".");
      let total = totals.get(key);
      if (!total) {
        total = empty(key, length);
        totals.set(key, total);
        order.push(key);
      }
      add(total, launch, i);
    }
  });
  const children = new Map<string, string[]>();
  for (const key of order) {
    if (key === "") continue;
    const parent = key.includes(".") ? key.slice(0, key.lastIndexOf(".")) : "";
    children.set(parent, [...(children.get(parent) ?? []), key]);
  }
  const rows: Total[] = [];
  const walk = (key: string): void => {
    const total = totals.get(key);
    if (!total) return;
    rows.push(finish(total));
    for (const child of children.get(key) ?? []) walk(child);
  };
  walk("");
  return rows;
}

/** One row per kernel, the longest first. */
export function byKernel(profile: Profile, kernels: readonly Kernel[]): Total[] {
  const totals = new Map<number, Total>();
  profile.launches.forEach((launch, i) => {
    const total = totals.get(launch.kernel) ?? empty(kernels[launch.kernel]?.name ?? "?", 0);
    totals.set(launch.kernel, total);
    add(total, launch, i);
  });
  return [...totals.values()].map(finish).sort((a, b) => b.seconds - a.seconds);
}

/** One row per operator, the longest first. */
export function byOperator(profile: Profile, origins: readonly Origin[]): Total[] {
  const totals = new Map<string, Total>();
  profile.launches.forEach((launch, i) => {
    const key = origins[launch.origin]?.op ?? "?";
    const total = totals.get(key) ?? empty(key, 0);
    totals.set(key, total);
    add(total, launch, i);
  });
  return [...totals.values()].map(finish).sort((a, b) => b.seconds - a.seconds);
}
