// Which colors the page has: the theme that was chosen, or the system's.

import { computed, effect, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { recall, remember } from "./state";

export type Theme = "system" | "light" | "dark";
export type Scheme = "light" | "dark";

const query = matchMedia("(prefers-color-scheme: dark)");
const system = signal<Scheme>(query.matches ? "dark" : "light");
query.addEventListener("change", ({ matches }) => (system.value = matches ? "dark" : "light"));

export const theme: Signal<Theme> = signal(recall<Theme>("theme", "system"));
export const scheme: ReadonlySignal<Scheme> = computed(() => (theme.value === "system" ? system.value : theme.value));

export function choose(chosen: Theme): void {
  theme.value = chosen;
  remember("theme", chosen);
}

// Before anything is drawn again, for canvases read the colors when they draw.
effect(() => {
  document.documentElement.dataset.theme = scheme.value;
});
