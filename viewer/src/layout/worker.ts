import { LayoutCache, type BoxSpec } from "./nested";

const cache = new LayoutCache();

self.onmessage = (event: MessageEvent<{ id: number; spec: BoxSpec }>): void => {
  const { id, spec } = event.data;
  self.postMessage({ id, layout: cache.layout(spec) });
};
