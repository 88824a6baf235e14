// Dynamic dims with their ranges, and the conditions on them with the lines that asked.

import type { JSX } from "preact";
import { useView } from "../context";
import { PlaceLink } from "../panes/Details";

export function DimsPanel(): JSX.Element {
  const { view } = useView();
  return (
    <div class="panel dims">
      <section class="card" aria-label="Dynamic dims">
        <header class="card-header">
          <h3>Dynamic dims</h3>
        </header>
        <table class="data">
          <thead>
            <tr>
              <th scope="col">dim</th>
              <th scope="col" class="number">
                least
              </th>
              <th scope="col" class="number">
                most
              </th>
              <th scope="col">chosen by</th>
              <th scope="col">in words</th>
            </tr>
          </thead>
          <tbody>
            {view.dims.map(({ name, low, high, auto, text }) => (
              <tr key={name}>
                <th scope="row">
                  <code>{name}</code>
                </th>
                <td class="number">{low}</td>
                <td class="number">{high ?? "∞"}</td>
                <td>{auto ? "capture" : "the caller"}</td>
                <td>{text}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      <section class="card" aria-label="Constraints">
        <header class="card-header">
          <h3>Constraints</h3>
          <span class="card-note">checked at every call</span>
        </header>
        {view.constraints.length === 0 ? (
          <p class="empty">Nothing in the model restricts the dims further.</p>
        ) : (
          <table class="data">
            <thead>
              <tr>
                <th scope="col">condition</th>
                <th scope="col">asked by</th>
              </tr>
            </thead>
            <tbody>
              {view.constraints.map(({ text, place }, i) => (
                <tr key={i}>
                  <th scope="row">
                    <code>{text}</code>
                  </th>
                  <td>{place >= 0 ? <PlaceLink place={place} /> : <span class="muted">the arguments of the capture</span>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </section>
    </div>
  );
}
