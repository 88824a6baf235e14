import "./style.css";
import { render } from "preact";
import { App } from "./App";
import { followAddress, readAddress } from "./address";
import { StateContext } from "./context";
import { readView } from "./data/reading";
import { ViewState } from "./state";
import "./theme";

const root = document.getElementById("app")!;

// An icon of the page's own: browsers ask the server for one otherwise.
const ICON =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M4 5h8l3 7H1z" fill="#b8761a"/><path d="M4 5h8l-1 2H5z" fill="#e3b35b"/></svg>';
const icon = document.createElement("link");
icon.rel = "icon";
icon.href = `data:image/svg+xml,${encodeURIComponent(ICON)}`;
document.head.append(icon);

readView(document)
  .then((view) => {
    performance.mark("ingot-data");
    document.title = `${view.title} – Ingot`;
    const state = new ViewState(view);
    readAddress(state, location.hash);
    followAddress(state);
    addEventListener("hashchange", () => readAddress(state, location.hash));
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
