// Layout in a worker; in this thread where no worker can be started.

import LayoutWorker from "./worker?worker&inline";
import { LayoutCache, type BoxLayout, type BoxSpec } from "./nested";

type Receive = (layout: BoxLayout) => void;

export class LayoutClient {
  private worker: Worker | null = null;
  private readonly own = new LayoutCache();
  private readonly waiting = new Map<number, { spec: BoxSpec; receive: Receive }>();
  private next = 0;

  constructor() {
    try {
      this.worker = new LayoutWorker();
      this.worker.onmessage = (event: MessageEvent<{ id: number; layout: BoxLayout }>) => {
        const request = this.waiting.get(event.data.id);
        this.waiting.delete(event.data.id);
        request?.receive(event.data.layout);
      };
      this.worker.onerror = () => this.giveUp();
    } catch {
      this.worker = null;
    }
  }

  /** Lays a box out; `receive` is called with the result, later. */
  request(spec: BoxSpec, receive: Receive): void {
    if (this.worker === null) {
      queueMicrotask(() => receive(this.own.layout(spec)));
      return;
    }
    const id = this.next++;
    this.waiting.set(id, { spec, receive });
    this.worker.postMessage({ id, spec });
  }

  get isInWorker(): boolean {
    return this.worker !== null;
  }

  private giveUp(): void {
    this.worker?.terminate();
    this.worker = null;
    for (const { spec, receive } of this.waiting.values()) receive(this.own.layout(spec));
    this.waiting.clear();
  }
}
