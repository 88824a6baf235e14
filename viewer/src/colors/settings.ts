// What the graph is colored by.

export interface ColorRule {
  query: string;
  color: string;
}

export interface ColorSettings {
  /** The choice's name. */
  by: string;
  rules: ColorRule[];
}

export const KIND = "kind";
