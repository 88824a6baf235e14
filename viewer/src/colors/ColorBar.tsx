// Above the graph: what it is colored by, the legend, and the reader's own rules.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useView } from "../context";
import { plural } from "../data/format";
import { CATEGORIES } from "../graph/categories";
import type { Legend, LegendScale } from "./coloring";
import { formatEnd, formatTitle } from "./legend_text";
import type { Choice } from "./measures";
import { kindColor } from "./palettes";
import { MOST_RULES } from "./rules";
import type { ColorRule } from "./settings";

interface Props {
  choices: Choice[];
  choice: Choice;
  legend: Legend;
}

function Option({ name, title }: Choice): JSX.Element {
  return <option value={name}>{title}</option>;
}

export function ColorBar({ choices, choice, legend }: Props): JSX.Element {
  const state = useView();
  const { rules } = state.colors.value;
  const [isOpen, setOpen] = useState(false);
  const own = choices.filter((one) => one.own);
  return (
    <>
      <div class="color-bar">
        <label class="check">
          Color by
          <select
            aria-label="Color by"
            value={choice.name}
            onChange={(event) => state.setColors({ by: event.currentTarget.value, rules })}
          >
            {choices.filter((one) => !one.own).map((one) => (
              <Option key={one.name} {...one} />
            ))}
            {own.length > 0 && (
              <optgroup label="your numbers">
                {own.map((one) => (
                  <Option key={one.name} {...one} />
                ))}
              </optgroup>
            )}
          </select>
        </label>
        <button type="button" aria-expanded={isOpen} title="Your own colors: rules that the graph's search reads" onClick={() => setOpen(!isOpen)}>
          {rules.length === 0 ? "Rules" : `Rules (${rules.length})`}
        </button>
        <LegendRow legend={legend} />
      </div>
      {isOpen && <RulesEditor />}
    </>
  );
}

function LegendRow({ legend }: { legend: Legend }): JSX.Element {
  return (
    <div class="legend-row" role="group" aria-label={`Legend: ${formatTitle(legend)}`}>
      {legend.scale && <ScaleLegend title={formatTitle(legend)} scale={legend.scale} />}
      <ul>
        {legend.entries.map(({ label, color, category, count, rule }, i) => (
          <li
            key={`${rule}${label}${i}`}
            class={rule ? "rule" : ""}
            title={`${category ? CATEGORIES.find(([name]) => name === category)![1] : label}: ${plural(count, "node")}`}
          >
            <span class={category ? `dot c-${category}` : "dot"} style={category ? undefined : { background: color }} aria-hidden="true" />
            {label}
          </li>
        ))}
      </ul>
    </div>
  );
}

function ScaleLegend({ title, scale }: { title: string; scale: LegendScale }): JSX.Element {
  const [low, high] = [formatEnd(scale, scale.low), formatEnd(scale, scale.high)];
  return (
    <span class="scale" role="img" aria-label={`${title}, from ${low} to ${high}`}>
      <span class="scale-end">{low}</span>
      <span class="ramp" style={{ background: `linear-gradient(to right, ${scale.stops.join(", ")})` }} />
      <span class="scale-end">{high}</span>
      {scale.logarithmic && <span class="muted">logarithmic</span>}
      {scale.missing > 0 && <span class="muted">{scale.missing} without</span>}
    </span>
  );
}

function RulesEditor(): JSX.Element {
  const state = useView();
  const { by, rules } = state.colors.value;
  const write = (made: ColorRule[]): void => state.setColors({ by, rules: made });
  const change = (at: number, part: Partial<ColorRule>): void => write(rules.map((rule, i) => (i === at ? { ...rule, ...part } : rule)));
  const raise = (at: number): void => {
    const made = [...rules];
    [made[at - 1], made[at]] = [made[at], made[at - 1]];
    write(made);
  };
  return (
    <section class="rules" aria-label="Color rules">
      {rules.length === 0 && <p class="muted">No rules. A rule colors what the search finds with its words; the first rule that fits counts.</p>}
      <ol>
        {rules.map(({ query, color }, i) => (
          <li key={i}>
            <input
              type="color"
              aria-label={`Color of rule ${i + 1}`}
              value={color}
              onInput={(event) => change(i, { color: event.currentTarget.value })}
            />
            <input
              type="search"
              maxLength={200}
              aria-label={`Words of rule ${i + 1}`}
              placeholder="op:linear, module:layer.0, shape:768, /a|b/"
              value={query}
              onInput={(event) => change(i, { query: event.currentTarget.value })}
            />
            <button type="button" class="icon" aria-label={`Move rule ${i + 1} up`} disabled={i === 0} onClick={() => raise(i)}>
              ↑
            </button>
            <button type="button" class="icon" aria-label={`Remove rule ${i + 1}`} onClick={() => write(rules.filter((_, at) => at !== i))}>
              ×
            </button>
          </li>
        ))}
      </ol>
      <button
        type="button"
        disabled={rules.length >= MOST_RULES}
        onClick={() => write([...rules, { query: state.query.value.slice(0, 200), color: kindColor(rules.length + 1) }])}
      >
        Add a rule
      </button>
    </section>
  );
}
