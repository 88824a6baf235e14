// Values of weights: asked for from the server, block by block, or read from the page where it holds them.

import type { Stats, View, WeightInfo } from "./contract";

/** A block of a slice: rows and columns from the first to before the last; the other dims at an index. */
export interface Block {
  fixed: readonly number[];
  rows: [number, number];
  columns: [number, number];
}

const SIZES: Record<string, number> = { bool: 1, bf16: 2 };

export function itemSize(wire: string): number {
  return SIZES[wire] ?? Number(wire.slice(1)) / 8;
}

/** How many rows and columns each slice has. */
export function matrixSize(shape: readonly number[]): [number, number] {
  if (shape.length > 1) return [shape[shape.length - 2], shape[shape.length - 1]];
  return [shape.length === 1 ? shape[0] : 1, 1];
}

export function countOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** The address of a block beside the page. */
export function blockPath(weight: number, { fixed, rows, columns }: Block): string {
  return `weights/${weight}/${fixed.length === 0 ? "-" : fixed.join(".")}/${rows.join("-")}/${columns.join("-")}`;
}

export async function readBlock(view: View, weight: number, block: Block): Promise<string[][]> {
  const info = view.weights[weight];
  const bytes = info.data === undefined ? await download(weight, block) : cutBlock(info, allBytes(info), block);
  const [width, size] = [block.columns[1] - block.columns[0], itemSize(info.wire)];
  const rows: string[][] = [];
  for (let row = 0; row < block.rows[1] - block.rows[0]; row++) {
    rows.push(Array.from({ length: width }, (_, column) => formatValue(bytes, (row * width + column) * size, info)));
  }
  return rows;
}

async function download(weight: number, block: Block): Promise<DataView> {
  const response = await fetch(blockPath(weight, block));
  if (!response.ok) throw new Error(`The server answered ${response.status}: ${(await response.text()).trim()}`);
  return new DataView(await response.arrayBuffer());
}

/** What is said of all values of a weight; null of complex numbers. */
export async function readStats({ weights }: View, weight: number): Promise<Stats | null> {
  const { data, stats } = weights[weight];
  if (data !== undefined) return stats ?? null;
  const response = await fetch(`weights/${weight}.json`);
  return response.ok ? ((await response.json()) as Stats | null) : null;
}

const unpacked = new WeakMap<WeightInfo, DataView>();

/** All values of a weight that the page holds. */
export function allBytes(info: WeightInfo): DataView {
  let found = unpacked.get(info);
  if (!found) {
    found = new DataView(Uint8Array.from(atob(info.data ?? ""), (letter) => letter.charCodeAt(0)).buffer);
    unpacked.set(info, found);
  }
  return found;
}

function cutBlock({ shape, wire }: WeightInfo, bytes: DataView, { fixed, rows, columns }: Block): DataView {
  const [height, width] = matrixSize(shape);
  const size = itemSize(wire);
  const slice = fixed.reduce((at, index, dim) => at * shape[dim] + index, 0);
  const across = (columns[1] - columns[0]) * size;
  const made = new Uint8Array((rows[1] - rows[0]) * across);
  for (let row = rows[0]; row < rows[1]; row++) {
    const start = ((slice * height + row) * width + columns[0]) * size;
    made.set(new Uint8Array(bytes.buffer, bytes.byteOffset + start, across), (row - rows[0]) * across);
  }
  return new DataView(made.buffer);
}

/** Digits that tell every two values of a dtype apart. */
const DIGITS: Record<string, number> = { bfloat16: 4, float16: 5, float32: 9, complex32: 5, complex64: 9 };

export function formatValue(bytes: DataView, at: number, { wire, dtype }: Pick<WeightInfo, "wire" | "dtype">): string {
  switch (wire) {
    case "bool":
      return bytes.getUint8(at) === 0 ? "false" : "true";
    case "i8":
      return String(bytes.getInt8(at));
    case "u8":
      return String(bytes.getUint8(at));
    case "i16":
      return String(bytes.getInt16(at, true));
    case "u16":
      return String(bytes.getUint16(at, true));
    case "i32":
      return String(bytes.getInt32(at, true));
    case "u32":
      return String(bytes.getUint32(at, true));
    case "i64":
      return String(bytes.getBigInt64(at, true));
    case "u64":
      return String(bytes.getBigUint64(at, true));
    case "f64":
      return formatFloat(bytes.getFloat64(at, true), 17);
    case "c64":
      return formatComplex(bytes.getFloat32(at, true), bytes.getFloat32(at + 4, true), DIGITS[dtype] ?? 9);
    case "c128":
      return formatComplex(bytes.getFloat64(at, true), bytes.getFloat64(at + 8, true), 17);
    case "f16":
      return formatFloat(readHalf(bytes.getUint16(at, true)), 5);
    case "bf16":
      return formatFloat(readUpperHalf(bytes.getUint16(at, true)), 4);
    default:
      return formatFloat(bytes.getFloat32(at, true), DIGITS[dtype] ?? 4);
  }
}

function formatComplex(real: number, imaginary: number, digits: number): string {
  const text = formatFloat(imaginary, digits);
  return `${formatFloat(real, digits)}${text.startsWith("-") ? "" : "+"}${text}i`;
}

function formatFloat(value: number, digits: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Object.is(value, -0)) return "-0";
  if (digits > 9) return String(value);
  if (digits === 9) {
    // As few digits as give the same float32 again.
    for (let few = 6; few < 9; few++) {
      const short = Number(value.toPrecision(few));
      if (Math.fround(short) === value) return String(short);
    }
  }
  return String(Number(value.toPrecision(digits)));
}

const scratch = new DataView(new ArrayBuffer(4));

function readUpperHalf(bits: number): number {
  scratch.setUint32(0, bits * 65536);
  return scratch.getFloat32(0);
}

function readHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
}

const NUMPY: Record<string, string> = { bool: "|b1", i8: "|i1", u8: "|u1", bf16: "<f4", c64: "<c8", c128: "<c16" };

/** The .npy file of a weight that the page holds. NumPy has no bfloat16: its values are saved as float32. */
export function npyFile(info: WeightInfo): Blob {
  const { wire, shape } = info;
  const type = NUMPY[wire] ?? `<${wire[0]}${itemSize(wire)}`;
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  const text = `{'descr': '${type}', 'fortran_order': False, 'shape': ${tuple}, }`;
  const header = text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11) + "\n";
  const bytes = allBytes(info);
  const magic = new Uint8Array([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  const parts: BlobPart[] = [magic, header];
  if (wire !== "bf16") parts.push(bytes.buffer as ArrayBuffer);
  else {
    const wide = new DataView(new ArrayBuffer(bytes.byteLength * 2));
    for (let at = 0; at < bytes.byteLength; at += 2) wide.setUint16(at * 2 + 2, bytes.getUint16(at, true), true);
    parts.push(wide.buffer as ArrayBuffer);
  }
  return new Blob(parts, { type: "application/octet-stream" });
}
