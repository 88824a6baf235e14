// Colors for numbers and for kinds, in both themes. They differ in lightness or are told apart by people with any color vision.

import type { Scheme } from "../theme";

/** From the least to the most, ever darker on light ground and ever lighter on dark ground. */
const RAMPS: Record<Scheme, readonly string[]> = {
  light: ["#fdecc0", "#f9b16e", "#e0605f", "#97297f", "#3a125e"],
  dark: ["#45206f", "#93307f", "#dc5c62", "#f9ab65", "#fdf0bd"],
};

// The colors of Okabe and Ito; each in three shades, for more kinds than eight.
const HUES = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#d55e00", "#9a9a9a"];
const SHADES: [string, number][] = [
  ["#ffffff", 0],
  ["#ffffff", 0.55],
  ["#000000", 0.4],
];
export const KINDS = HUES.length * SHADES.length;

export const CHANGES: Record<Scheme, Record<"added" | "replaced" | "removed" | "unchanged", string>> = {
  light: { added: "#1b8a45", replaced: "#e0a02e", removed: "#c43d31", unchanged: "#e3e6ea" },
  dark: { added: "#4fb56c", replaced: "#d9a441", removed: "#e0675d", unchanged: "#2c313a" },
};

function channels(color: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));
}

function mix(from: string, to: string, share: number): string {
  const [a, b] = [channels(from), channels(to)];
  return `#${a.map((value, i) => Math.round(value + (b[i] - value) * share).toString(16).padStart(2, "0")).join("")}`;
}

/** The color of a share of the way from the least to the most. */
export function rampColor(share: number, scheme: Scheme): string {
  return mixStops(RAMPS[scheme], share);
}

export function mixStops(stops: readonly string[], share: number): string {
  const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const below = Math.min(stops.length - 2, Math.floor(at));
  return mix(stops[below], stops[below + 1], at - below);
}

export function rampStops(scheme: Scheme): readonly string[] {
  return RAMPS[scheme];
}

export function kindColor(number: number): string {
  const [toward, share] = SHADES[Math.floor(number / HUES.length) % SHADES.length];
  return mix(HUES[number % HUES.length], toward, share);
}

function luminance(color: string): number {
  const [red, green, blue] = channels(color).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** How well two colors can be told apart, as WCAG counts it. */
export function contrast(first: string, second: string): number {
  const [a, b] = [luminance(first), luminance(second)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

const DARK = "#000000";
const LIGHT = "#ffffff";

/** The color of text on a ground. */
export function textOn(ground: string): string {
  return contrast(DARK, ground) >= contrast(LIGHT, ground) ? DARK : LIGHT;
}
