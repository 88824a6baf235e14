// A call over time as bars in lanes: modules around one another, launches, and what each thread worked on.

import type { Origin, Profile } from "./contract";

export interface TimeBar {
  lane: number;
  /** In seconds since the call began. */
  begin: number;
  end: number;
  /** Of a launch or of a thread's part of it; -1 of a module. */
  launch: number;
  /** Path of a module; "" of a launch. */
  module: string;
}

export interface TimeBars {
  /** The first lanes are of modules, the outermost first; then one of launches, then one for each thread. */
  moduleLanes: number;
  threadLanes: number;
  bars: TimeBar[];
  end: number;
  /** The share of all threads' time in which they did nothing; null where threads are not known. */
  idle: number | null;
}

const MOST_MODULE_LANES = 6;

export function timeBars(profile: Profile, origins: readonly Origin[]): TimeBars {
  const intervals = profile.intervals.map(([launch, thread, begin, end]) => {
    return { launch, thread, begin: begin / 1e9, end: end / 1e9 };
  });
  const paths = profile.launches.map(({ origin }) => (origins[origin]?.module ?? "").split(".").filter((part) => part !== ""));
  const moduleLanes = Math.min(MOST_MODULE_LANES, Math.max(0, ...paths.map(({ length }) => length)));
  const end = Math.max(0, ...intervals.map((interval) => interval.end));
  const bars: TimeBar[] = [];
  const open: TimeBar[] = [];
  let busy = 0;
  for (const { launch, thread, begin, end } of intervals) {
    bars.push({ lane: moduleLanes + 1 + thread, begin, end, launch, module: "" });
    if (thread >= 0) {
      busy += end - begin;
      continue;
    }
    // Launches follow one another: a module lasts as long as the next launch is in it too.
    const parts = paths[launch].slice(0, moduleLanes);
    for (let lane = 0; lane < moduleLanes; lane++) {
      const module = lane < parts.length ? parts.slice(0, lane + 1).join(".") : "";
      if (module !== "" && open[lane]?.module === module) open[lane].end = end;
      else {
        open.length = lane;
        if (module === "") break;
        open[lane] = { lane, begin, end, launch: -1, module };
        bars.push(open[lane]);
      }
    }
  }
  const hasThreads = intervals.some(({ thread }) => thread >= 0);
  const threadLanes = hasThreads ? profile.threads : 0;
  return { moduleLanes, threadLanes, bars, end, idle: hasThreads && end > 0 ? 1 - busy / (profile.threads * end) : null };
}
