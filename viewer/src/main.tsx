import "./style.css";
import { render } from "preact";
import { App } from "./App";
import { StateContext } from "./context";
import { readView } from "./data/reading";
import { ViewState } from "./state";

const root = document.getElementById("app")!;

readView(document)
  .then((view) => {
    performance.mark("ingot-data");
    document.title = `${view.title} – Ingot`;
    const state = new ViewState(view);
    render(
      <StateContext.Provider value={state}>
        <App />
      </StateContext.Provider>,
      root,
    );
    root.dataset.ready = "true";
    requestAnimationFrame(() => performance.mark("ingot-first-paint"));
  })
  .catch((error: unknown) => {
    const message = document.createElement("p");
    message.className = "failure";
    message.setAttribute("role", "alert");
    message.textContent = error instanceof Error ? error.message : String(error);
    root.replaceChildren(message);
  });
