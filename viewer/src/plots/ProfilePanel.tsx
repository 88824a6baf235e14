// Where the time of a call goes: a time line, the roofline, and tables. One file, or two beside each other.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { useView } from "../context";
import { titlesOf, type Kernel, type Origin, type Profile } from "../data/contract";
import { bytes, ofPeak, percent, scaled, seconds } from "../data/format";
import { byKernel, byModule, byOperator, type Total } from "../data/profile_tables";
import { timeBars } from "../data/time_bars";
import { KernelNumbers, NumberCells, NumberHeads, useKernelColumns } from "./KernelNumbers";
import { Roofline } from "./Roofline";
import { ThreadTimeline } from "./ThreadTimeline";

export interface Measured {
  title: string;
  profile: Profile;
  kernels: Kernel[];
  origins: Origin[];
  /** Whether its kernels are those of the program that the page shows. */
  own: boolean;
}

type Grouping = "module" | "kernel" | "operator";

export function useMeasured(): Measured[] {
  const { view } = useView();
  const found: Measured[] = [];
  const [own, other] = titlesOf(view);
  const { profile, kernels, origins, compare } = view;
  if (profile) found.push({ title: own, profile, kernels, origins, own: true });
  if (compare?.profile) {
    found.push({ title: other, profile: compare.profile, kernels: compare.kernels, origins: compare.origins, own: false });
  }
  return found;
}

function hasWork(measured: Measured[]): boolean {
  return measured.some(({ profile }) => profile.launches.some(({ effort, bytes }) => effort > 0 && bytes > 0));
}

function Bar({ share, className }: { share: number; className: string }): JSX.Element {
  return (
    <span class="bar" aria-hidden="true">
      <span class={className} style={{ width: `${Math.min(100, share * 100)}%` }} />
    </span>
  );
}

function totalsOf({ profile, kernels, origins }: Measured, grouping: Grouping, depth: number): Total[] {
  if (grouping === "kernel") return byKernel(profile, kernels);
  return grouping === "operator" ? byOperator(profile, origins) : byModule(profile, origins, depth);
}

function TotalsTable({ measured }: { measured: Measured[] }): JSX.Element {
  const state = useView();
  const [grouping, setGrouping] = useState<Grouping>("module");
  const [depth, setDepth] = useState(3);
  const tables = measured.map((each) => new Map(totalsOf(each, grouping, depth).map((total) => [total.key, total])));
  const keys = [...new Set(tables.flatMap((table) => [...table.keys()]))];
  const [first, second] = tables;
  const { columns, chooser } = useKernelColumns();
  const own = grouping === "kernel" && measured[0].own ? columns : [];
  const whole = measured.map(({ profile }) => Math.max(profile.seconds, 1e-30));
  const choose = (key: string): void => {
    const member = first.get(key)?.members[0];
    if (!measured[0].own || member === undefined) return;
    const launch = measured[0].profile.launches[member];
    if (grouping === "kernel") state.select({ kind: "kernel", kernel: launch.kernel });
    else if (grouping === "operator") state.select({ kind: "origin", origin: launch.origin });
    else {
      const module = state.view.modules.findIndex(({ path }) => path === key);
      if (module >= 0) state.select({ kind: "module", module }, false);
    }
  };
  return (
    <section class="card" aria-label="Time by part">
      <header class="card-header">
        <h3>Time</h3>
        <span class="segmented" role="group" aria-label="Group by">
          {(["module", "operator", "kernel"] as const).map((name) => (
            <button key={name} type="button" aria-pressed={grouping === name} onClick={() => setGrouping(name)}>
              by {name}
            </button>
          ))}
        </span>
        {grouping === "module" && (
          <label class="check">
            depth
            <input type="number" min={1} max={12} value={depth} onInput={(event) => setDepth(Math.max(1, Number(event.currentTarget.value) || 1))} />
          </label>
        )}
        {grouping === "kernel" && measured[0].own && chooser}
      </header>
      <div class="table-frame" tabIndex={0} role="region" aria-label="Table of times">
        <table class="data">
          <thead>
            <tr>
              <th scope="col">{grouping}</th>
              <th scope="col" class="number">
                {second ? measured[0].title : "time"}
              </th>
              <th scope="col">share</th>
              {second ? (
                <>
                  <th scope="col" class="number">
                    {measured[1].title}
                  </th>
                  <th scope="col">share</th>
                  <th scope="col" class="number">
                    ratio
                  </th>
                </>
              ) : (
                <>
                  <th scope="col" class="number">
                    launches
                  </th>
                  <th scope="col" class="number">
                    FLOP/s
                  </th>
                  <th scope="col" class="number">
                    bytes/s
                  </th>
                  <th scope="col">of peak</th>
                  <th scope="col" class="number" title="Share of the threads' time in which they had nothing to do">
                    idle
                  </th>
                </>
              )}
              <NumberHeads columns={own} />
            </tr>
          </thead>
          <tbody>
            {keys.map((key) => {
              const [a, b] = [first.get(key), second?.get(key)];
              const depth = (a ?? b)!.depth;
              return (
                <tr key={key}>
                  <th scope="row" style={{ paddingLeft: `${8 + depth * 14}px` }}>
                    <button type="button" class="link" onClick={() => choose(key)}>
                      {key === "" ? "whole call" : grouping === "module" ? key.slice(key.lastIndexOf(".") + 1) : key}
                    </button>
                  </th>
                  <td class="number">{a ? seconds(a.seconds) : "–"}</td>
                  <td class="share">
                    <Bar share={(a?.seconds ?? 0) / whole[0]} className="fill-a" />
                    {a ? percent(a.seconds / whole[0]) : "–"}
                  </td>
                  {second ? (
                    <>
                      <td class="number">{b ? seconds(b.seconds) : "–"}</td>
                      <td class="share">
                        <Bar share={(b?.seconds ?? 0) / whole[1]} className="fill-b" />
                        {b ? percent(b.seconds / whole[1]) : "–"}
                      </td>
                      <td class="number">{a && b && b.seconds > 0 ? `${(a.seconds / b.seconds).toFixed(2)}×` : "–"}</td>
                    </>
                  ) : (
                    <>
                      <td class="number">{a!.launches}</td>
                      <td class="number">{scaled(a!.flops / Math.max(a!.seconds, 1e-30))}</td>
                      <td class="number">{scaled(a!.bytes / Math.max(a!.seconds, 1e-30))}</td>
                      <td class="share">
                        <Bar share={a!.peak} className="fill-peak" />
                        {ofPeak(a!.peak)}
                      </td>
                      <td class="number">{a!.idle === null ? "–" : percent(a!.idle)}</td>
                    </>
                  )}
                  <NumberCells columns={own} kernel={key} />
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

export function ProfilePanel(): JSX.Element {
  const { view } = useView();
  const measured = useMeasured();
  const times = useMemo(() => measured.map(({ profile, origins }) => timeBars(profile, origins)), [view]);
  const longest = Math.max(...times.map(({ end }) => end));
  if (measured.length === 0) {
    return (
      <div class="panel profile">
        <KernelNumbers />
      </div>
    );
  }
  return (
    <div class="panel profile">
      <div class="summary-row">
        {measured.map(({ title, profile }, i) => (
          <dl class="summary" key={i}>
            <div>
              <dt>{measured.length > 1 ? title : "one call"}</dt>
              <dd class="big">{seconds(profile.seconds)}</dd>
            </div>
            <div>
              <dt>launches</dt>
              <dd>{profile.launches.length}</dd>
            </div>
            <div>
              <dt>threads</dt>
              <dd>{profile.threads}</dd>
            </div>
            {times[i].idle !== null && (
              <div title="Share of the threads' time, in the call that the time line shows, in which they had nothing to do">
                <dt>idle</dt>
                <dd>{percent(times[i].idle!)}</dd>
              </div>
            )}
            <div>
              <dt>runs</dt>
              <dd>{profile.repeat}</dd>
            </div>
            <div>
              <dt>limits</dt>
              <dd>
                {scaled(profile.limits.flops)}FLOP/s, {bytes(profile.limits.bytes)}/s
              </dd>
            </div>
          </dl>
        ))}
      </div>
      {measured.map((each, i) => (
        <ThreadTimeline key={i} measured={each} times={times[i]} longest={longest} />
      ))}
      <div class={hasWork(measured) ? "side-by-side" : ""}>
        <Roofline measured={measured} />
        <TotalsTable measured={measured} />
      </div>
    </div>
  );
}
