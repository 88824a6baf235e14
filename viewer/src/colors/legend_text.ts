// What a legend says.

import { seconds, value } from "../data/format";
import type { Legend, LegendScale } from "./coloring";

export function formatEnd({ unit }: Pick<LegendScale, "unit">, number: number): string {
  if (unit === "s") return seconds(number);
  return unit === "" ? value(number) : `${value(number)} ${unit}`;
}

export function formatTitle({ title, scale }: Legend): string {
  return scale?.logarithmic ? `${title} (logarithmic)` : title;
}
