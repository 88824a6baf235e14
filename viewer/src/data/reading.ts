// Gets the data of the page: from the page itself, or from the server beside it.

import type { View } from "./contract";

const SCHEMA = 1;

export async function readView(page: Document): Promise<View> {
  const element = page.getElementById("view-data");
  const view = element ? await unpack(element) : await download();
  if (view === null || typeof view !== "object" || (view as View).kind !== "view") {
    throw new Error("The data of this page is not a view that Ingot made. Export it again with `ingot view`.");
  }
  const { schema } = view as View;
  if (schema !== SCHEMA) {
    throw new Error(`The data of this page has schema ${schema}, and the page reads ${SCHEMA}. Export it again with \`ingot view\`.`);
  }
  return view as View;
}

async function unpack(element: HTMLElement): Promise<unknown> {
  const text = element.textContent ?? "";
  if (element.dataset.encoding !== "gzip+base64") return JSON.parse(text);
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function download(): Promise<unknown> {
  const response = await fetch("view.json");
  if (!response.ok) {
    throw new Error(`The server answered ${response.status} to view.json. Start \`ingot view\` again and open the address that it prints.`);
  }
  return response.json();
}
