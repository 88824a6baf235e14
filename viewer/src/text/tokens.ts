// Splits a line of code into words to be colored. What it does not know stays plain.

export type Language = "graph" | "loop_ir" | "c" | "cuda" | "python" | "assembly";

export interface Token {
  kind: string;
  text: string;
}

const PYTHON =
  "and as assert async await break class continue def del elif else except finally for from global if import in is " +
  "lambda nonlocal not or pass raise return try while with yield None True False self";
const C =
  "alignas auto break case char const continue default do double else enum extern float for goto if inline int long " +
  "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while " +
  "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t bool __global__ __device__ __shared__ template";
const LOOP_IR =
  "map reduce scan gemm convolution attention load store for in if else where buffer input output weight temporary constant parallel";
const GRAPH = "graph return def with cond while";

const KEYWORDS: Record<Language, Set<string>> = {
  python: new Set(PYTHON.split(" ")),
  c: new Set(C.split(" ")),
  cuda: new Set(C.split(" ")),
  loop_ir: new Set(LOOP_IR.split(" ")),
  graph: new Set(GRAPH.split(" ")),
  assembly: new Set(),
};

const DTYPES = /^(?:[fiu](?:8|16|32|64)|bf16|c64|c128|b8|float\d*|bfloat16|u?int\d+|bool|complex\d+)$/;
const HASH_COMMENTS = /(#.*$)|("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)|([A-Za-z_][A-Za-z_0-9]*)|(\d[\w.]*)|([^\w"'#]+|.)/g;
const SLASH_COMMENTS =
  /(\/\/.*$|\/\*.*?(?:\*\/|$))|("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)|([%#]?[A-Za-z_][A-Za-z_0-9]*)|(%?\d[\w.]*)|([^\w"'%#/]+|.)/g;

const LONGEST = 2000;

export function tokenize(line: string, language: Language): Token[] {
  if (line.length > LONGEST) return [{ kind: "", text: line }];
  if (language === "assembly") return tokenizeInstruction(line);
  const pattern = language === "python" || language === "graph" ? HASH_COMMENTS : SLASH_COMMENTS;
  const keywords = KEYWORDS[language];
  const tokens: Token[] = [];
  for (const match of line.matchAll(pattern)) {
    const text = match[0];
    let kind = "";
    if (match[1] !== undefined) kind = "comment";
    else if (match[2] !== undefined) kind = "string";
    else if (match[3] !== undefined) {
      if (keywords.has(text)) kind = "keyword";
      else if (DTYPES.test(text)) kind = "dtype";
      else if (line[match.index + text.length] === "(") kind = "call";
      else if (text.startsWith("#")) kind = "keyword";
    } else if (match[4] !== undefined) kind = text.startsWith("%") ? "" : "number";
    const last = tokens[tokens.length - 1];
    if (last && last.kind === kind) last.text += text;
    else tokens.push({ kind, text });
  }
  return tokens;
}

const INSTRUCTION = /^(\s*[0-9a-f]+ {2})?((?:@!?\S+ )?[\w.{}]+)?(.*?)(\s*(?:#|\/\/).*)?$/;

/** An instruction: its offset, its name, its operands, what a tool says of it. */
function tokenizeInstruction(line: string): Token[] {
  if (/^\S+:$/.test(line)) return [{ kind: "call", text: line }];
  const [, offset = "", name = "", operands = "", comment = ""] = INSTRUCTION.exec(line) ?? [];
  const all: Token[] = [
    { kind: "comment", text: offset },
    { kind: "keyword", text: name },
    { kind: "", text: operands },
    { kind: "comment", text: comment },
  ];
  return all.filter(({ text }) => text !== "");
}
