import { describe, expect, it } from "vitest";
import { cutTokens } from "../src/text/Code";
import { findMatches, matchesOfLine, matchFrom, MOST_MATCHES } from "../src/text/find";
import { tokenize } from "../src/text/tokens";

describe("find in a text", () => {
  const lines = ["float a = A;", "", "return a + aa;"];
  const find = (query: string): string[] =>
    findMatches(query, lines.length, (i) => lines[i]).map(({ line, start, end }) => `${line}:${start}-${end}`);

  it("finds every place in any case, without overlaps", () => {
    expect(find("a")).toEqual(["0:3-4", "0:6-7", "0:10-11", "2:7-8", "2:11-12", "2:12-13"]);
    expect(find("AA")).toEqual(["2:11-13"]);
    expect(find("")).toEqual([]);
    expect(find(".*")).toEqual([]);
  });

  it("knows the matches of a line, and the next one", () => {
    const matches = findMatches("a", lines.length, (i) => lines[i]);
    expect([0, 1, 2].map((line) => matchesOfLine(matches, line).length)).toEqual([3, 0, 3]);
    expect([0, 1, 3].map((line) => matchFrom(matches, line))).toEqual([0, 3, 0]);
    expect(matchFrom([], 0)).toBe(-1);
  });

  it("ends at some number of matches", () => {
    expect(findMatches("x", 3 * MOST_MATCHES, () => "xx").length).toBe(MOST_MATCHES);
  });

  it("cuts tokens where matches begin and end", () => {
    const text = "return value; // values";
    const matches = findMatches("n value", 1, () => text).concat(findMatches("value", 1, () => text).slice(1));
    const pieces = cutTokens(tokenize(text, "c"), matches);
    expect(pieces.map(({ text }) => text).join("")).toBe(text);
    expect(pieces.filter(({ match }) => match).map(({ text, kind }) => `${kind}:${text}`)).toEqual([
      "keyword:n",
      ": value",
      "comment:value",
    ]);
  });
});
