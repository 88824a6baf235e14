import type { JSX } from "preact";
import type { Histogram as Data } from "../data/contract";
import { value } from "../data/format";

const WIDTH = 220;
const HEIGHT = 46;

interface Props {
  data: Data;
  label: string;
  small?: boolean;
  /** Of a small one. */
  caption?: string;
}

/** Counts of values as bars, on the range that they cover. */
export function Histogram({ data, label, small, caption }: Props): JSX.Element {
  const most = Math.max(1, ...data.counts);
  const step = WIDTH / Math.max(1, data.counts.length);
  const height = small ? 18 : HEIGHT;
  return (
    <figure class={`histogram${small ? " small" : ""}`}>
      <svg viewBox={`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" role="img" aria-label={`${label}, from ${value(data.low)} to ${value(data.high)}`}>
        {data.counts.map((count, i) => {
          const size = count === 0 ? 0 : Math.max(1, (count / most) * (height - 1));
          return <rect key={i} x={i * step} y={height - size} width={Math.max(0.5, step - 0.6)} height={size} />;
        })}
        <line x1={0} x2={WIDTH} y1={height - 0.25} y2={height - 0.25} />
        {data.low < 0 && data.high > 0 && (
          <line class="zero" x1={(-data.low / (data.high - data.low)) * WIDTH} x2={(-data.low / (data.high - data.low)) * WIDTH} y1={0} y2={height} />
        )}
      </svg>
      {small && caption !== undefined && <figcaption>{caption}</figcaption>}
      {!small && (
        <figcaption>
          <span>{value(data.low)}</span>
          <span>{value(data.high)}</span>
        </figcaption>
      )}
    </figure>
  );
}
