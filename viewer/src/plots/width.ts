import { useEffect, useRef, useState } from "preact/hooks";
import type { RefObject } from "preact";

/** The width of an element, kept up to date. */
export function useWidth(first: number): [RefObject<HTMLDivElement | null>, number] {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(first);
  useEffect(() => {
    const element = frame.current!;
    const observer = new ResizeObserver(() => setWidth(Math.max(200, element.clientWidth)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [frame, width];
}
