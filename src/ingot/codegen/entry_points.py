"""The tables behind a library's exports, as C: its inputs, the sizes that they bind, its outputs and its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import size_text
from ingot.lowering.dependence import all_steps, reads_and_writes
from ingot.lowering.index_expr import Expr, RuntimeSize, Size, require_static, size_number
from ingot.lowering.loop_ir import BindSymbol, For
from ingot.lowering.loop_module import Module, PackedWeight
from ingot.scheduling.buffer_planning import ALIGN, byte_size

# In the order of `enum ingot_dtype`.
DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "uint16",
    "uint32",
    "uint64",
]


@dataclass(frozen=True, slots=True)
class PlacedWeight:
    """A weight and where it lies in the blob."""

    weight: PackedWeight
    offset: int
    size: int


def place_weights(module: Module) -> tuple[tuple[PlacedWeight, ...], int]:
    """Every weight that a step reads, one after another at multiples of 64 bytes; the last one's end is the size."""
    read: set[str] = set()
    for step in module.steps:
        r, w = reads_and_writes(step)
        read |= r | w
    placed, at = [], 0
    for weight in module.weights:
        if weight.buffer in read:
            size = require_static(byte_size(module.buffers[weight.buffer]))
            placed.append(PlacedWeight(weight, at, size))
            at += -(-size // ALIGN) * ALIGN
    return tuple(placed), placed[-1].offset + placed[-1].size if placed else 0


def export_tables(module: Module, sites: Sequence[str], weights_size: int) -> str:
    """What the exported functions read, behind abi.h and argument_checks.h: counts as macros, `ig_bind`, `ig_shapes`,
    and what they need. `sites` are what errors name."""
    numbers = [size_number(name) for name in size_names(module)]
    values: Mapping[str, object] = {
        "INPUTS": len(module.inputs),
        "OUTPUTS": len(module.outputs),
        "SYMBOLS": max(numbers, default=-1) + 1,
        "WEIGHTS_SIZE": weights_size,
        "DRAWS": module.draws,
        "STATEFUL": int(any(b.kind == "state" for b in module.buffers.values())),
    }
    text = "".join(f"#define IG_{name} {value}\n" for name, value in values.items())
    text += "static const char *const ig_sites[] = {" + ", ".join(quote(site) for site in [*sites, ""]) + "};\n"
    return text + _bind(module) + _shapes(module)


def size_names(module: Module) -> set[str]:
    """Every size that a call keeps: those that inputs bind, and those that steps bind."""
    found = set(module.symbols)
    sizes: list[Size] = [size for a in (*module.inputs, *module.outputs) for size in a.shape]
    sizes += [size for buffer in module.buffers.values() for size in buffer.shape]
    for size in sizes:
        if isinstance(size, Expr):
            found |= {s.name for s in size.symbols if isinstance(s, RuntimeSize)}
    for step in all_steps(module.steps):
        if isinstance(step, BindSymbol):
            found.add(step.symbol)
        if isinstance(step, For):
            found.add(step.loop.variable)
    return found


def _bind(module: Module) -> str:
    lines = [
        "static int ig_bind(const ingot_tensor *inputs, int64_t *n, char *message, size_t size)",
        "{",
        "    (void)n, (void)inputs;",
    ]
    for number, argument in enumerate(module.inputs):
        lines.append(
            f"    if (!ig_input(&inputs[{number}], {quote(argument.name)}, {DTYPES.index(argument.dtype)}, "
            f"{len(argument.shape)}, message, size)) return INGOT_INVALID;"
        )
    for name, symbol in module.symbols.items():
        place = (
            f"inputs[{symbol.place}].shape[{symbol.dim}]"
            if symbol.dim >= 0
            else f"*(const int64_t *)inputs[{symbol.place}].data"
        )
        value = f"({place} - {symbol.offset})" if symbol.offset else place
        lines.append(f"    n[{size_number(name)}] = {value}{f' / {symbol.slope}' if symbol.slope != 1 else ''};")
        high = "INT64_MAX" if symbol.high is None else symbol.high
        lines.append(
            f"    if (!ig_range({quote(symbol.name)}, n[{size_number(name)}], {symbol.low}, {high}, message, size)) "
            "return INGOT_INVALID;"
        )
    for number, argument in enumerate(module.inputs):
        for dim, size in enumerate(argument.shape):
            if isinstance(size, Expr) and not {s.name for s in size.symbols} <= set(module.symbols):
                continue
            lines.append(
                f"    if (!ig_dim(&inputs[{number}], {quote(argument.name)}, {dim}, {run_size(size)}, "
                "message, size)) return INGOT_INVALID;"
            )
    lines += ["    return INGOT_OK;", "}", ""]
    return "\n".join(lines)


# The program's own conditions are checked when it runs, which is too late for a caller that allocates its outputs.
_CHECK_SHAPES = """\
static int ig_check_shapes(const int64_t *sizes, char *message, size_t size)
{
    for (int o = 0, at = 0; o < IG_OUTPUTS; at += ig_ranks[o++])
        for (int d = 0; d < ig_ranks[o]; ++d)
            if (sizes[at + d] < 0) {
                if (message && size)
                    snprintf(message, size,
                        "The sizes of the inputs break a condition of the program: dim %d of output %d would be %lld.",
                        d, o, (long long)sizes[at + d]);
                return INGOT_INVALID;
            }
    return INGOT_OK;
}"""


def _shapes(module: Module) -> str:
    lines = ["static void ig_shapes(const int64_t *n, int64_t *sizes)", "{", "    (void)n, (void)sizes;"]
    at = 0
    ranks = []
    for argument in module.outputs:
        for size in argument.shape:
            lines.append(f"    sizes[{at}] = {run_size(size)};")
            at += 1
        ranks.append(len(argument.shape))
    lines += ["}", ""]
    dtypes = [DTYPES.index(a.dtype) for a in module.outputs]
    lines.append(f"static const int ig_ranks[] = {{{', '.join(map(str, [*ranks, 0]))}}};")
    lines.append(f"static const int ig_dtypes[] = {{{', '.join(map(str, [*dtypes, 0]))}}};")
    lines.append(f"enum {{ IG_SIZES = {max(at, 1)} }};")
    lines.append(_CHECK_SHAPES)
    states = [(p, w) for p in place_weights(module)[0] if (w := module.buffers[p.weight.buffer]).kind == "state"]
    lines.append(
        "static const int64_t ig_states[][2] = {"
        + ", ".join(f"{{{p.offset}, {p.size}}}" for p, _ in states)
        + ("" if states else "{0, 0}")
        + "};\n"
    )
    return "\n".join(lines)


def run_size(size: Size) -> str:
    """A size where `n` holds the run-time sizes."""
    symbols = size.symbols if isinstance(size, Expr) else ()
    names = {s.name: f"n[{size_number(s.name)}]" for s in symbols if isinstance(s, RuntimeSize)}
    return size_text(size, names)


def quote(text: str) -> str:
    """The text as a C string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
