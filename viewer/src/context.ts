import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { ViewState } from "./state";

export const StateContext = createContext<ViewState | null>(null);

export function useView(): ViewState {
  const state = useContext(StateContext);
  if (state === null) throw new Error("a pane is outside the page");
  return state;
}
