// Search in a stage: words, and words with the field to look in.

import type { NodeInfo, View } from "./contract";
import type { GraphStage } from "./program_view";

const FIELDS = { op: 0, module: 1, line: 2, shape: 3, name: 4, type: 3 } as const;
type Field = keyof typeof FIELDS;

interface Term {
  field: Field | null;
  text: string;
  /** In place of the text. */
  pattern: RegExp | null;
}

/** `op:linear module:layer.0 line:model.py:12 shape:768 word /a|b/ op:/^conv/`: every term has to be found. */
export function parseQuery(query: string): Term[] {
  return query
    .trim()
    .split(/\s+/)
    .filter((word) => word !== "")
    .map((word) => {
      const colon = word.indexOf(":");
      const name = colon > 0 ? word.slice(0, colon).toLowerCase() : "";
      const field = Object.hasOwn(FIELDS, name) ? (name as Field) : null;
      const text = field === null ? word : word.slice(colon + 1);
      return { field, text: text.toLowerCase(), pattern: readPattern(text) };
    })
    .filter((term) => term.text !== "");
}

/** A regular expression between slashes; null of other text, and while it is not finished. */
function readPattern(text: string): RegExp | null {
  const found = /^\/(.+)\/$/.exec(text);
  if (!found) return null;
  try {
    return new RegExp(found[1], "i");
  } catch {
    return null;
  }
}

const known = new WeakMap<NodeInfo, string[]>();

function fieldsOf(view: View, info: NodeInfo): string[] {
  let fields = known.get(info);
  if (!fields) {
    fields = makeFields(view, info);
    known.set(info, fields);
  }
  return fields;
}

function makeFields(view: View, info: NodeInfo): string[] {
  const [module, file, line] = view.places[info.place] ?? [-1, -1, 0];
  const call = view.modules[module];
  return [
    info.target,
    call ? `${call.call} ${call.type}` : "",
    file >= 0 ? `${view.files[file].name}:${line}` : "",
    info.type >= 0 ? view.types[info.type].text : "",
    info.name,
  ].map((text) => text.toLowerCase());
}

function fits(term: Term, fields: string[]): boolean {
  const { pattern } = term;
  if (pattern !== null) return term.field === null ? fields.some((text) => pattern.test(text)) : pattern.test(fields[FIELDS[term.field]]);
  if (term.field === null) return fields.some((field) => field.includes(term.text));
  const field = fields[FIELDS[term.field]];
  // A line number is found as a whole: 12 is not 120.
  if (term.field === "line" && /^\d+$/.test(term.text)) return field.endsWith(`:${term.text}`);
  if (term.field === "line" && /:\d+$/.test(term.text)) return field.endsWith(term.text);
  return field.includes(term.text);
}

/** Whether a node fits a query; null for an empty query. */
export function matchNodes(view: View, query: string): ((info: NodeInfo) => boolean) | null {
  const terms = parseQuery(query);
  if (terms.length === 0) return null;
  return (info) => {
    if (info.kind === "region") return false;
    const fields = fieldsOf(view, info);
    return terms.every((term) => fits(term, fields));
  };
}

/** The instances of a stage that fit a query, in the order of the program; none for an empty query. */
export function searchStage(stage: GraphStage, query: string): number[] {
  const matches = matchNodes(stage.view, query);
  return matches === null ? [] : stage.instances.flatMap(({ id, info }) => (matches(info) ? [id] : []));
}
