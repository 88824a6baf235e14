"""One C name space: every header, macro and math function together in one file."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.codegen import math_library
from ingot.codegen.build.isa import find_isa
from ingot.codegen.build.toolchain import find
from ingot.codegen.c_expressions import STORED
from ingot.targets.cpu.codegen.headers import HEADERS
from ingot.targets.cpu.codegen.runtime_library import RuntimeLibrary
from ingot_runtime.cpu_features import architecture

X86 = architecture() == "x86_64"
ISAS = ["x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4-amx"]
SHARED = {
    "tile": (("f32", "f64", "bf16", "u8"), ((16,), (48,))),
    "window": (("f32", "f64", "bf16", "u8"), ((16,), (64,))),
    "tile_amx": (("bf16", "u8"), ((16,), (48,))),
    "window_amx": (("bf16", "u8"), ((16,), (64,))),
    "depth": (("f32", "f64", "u8"), ((),)),
    "depths": (("f32", "f64", "u8"), ((3, 1), (5, 2))),
    "attention": (("f32", "f64"), ((),)),
    "scores": (("f32", "f64"), ((),)),
    "winograd": (("f32", "f64"), ((),)),
    "stream": (("s4", "s8", "s4z", "s8z"), ((16,), (64,))),
    "widen": (("s4", "s8", "s4z", "s8z"), ((16,), (64,))),
}


def everything() -> RuntimeLibrary:
    """A library that holds all that any model could need."""
    library = RuntimeLibrary(functions=set(math_library.functions()), by_lanes=True, amx_attention=True)
    for name, (kinds, sizes) in SHARED.items():
        for kind, size in itertools.product(kinds, sizes):
            library.share(name, kind, *size)  # type: ignore[arg-type]
    for kind, dtype in itertools.product(("f32", "f64"), ("float32", "float64", "bfloat16", "float16", "int64")):
        library.pack(kind, dtype)
    dtypes = ("float32", "float64", "int64", "uint8")
    for dtype in dtypes:
        both = f"{dtype}, {STORED[dtype]}"
        library.routines |= {("sort.h", f"{macro}({both})") for macro in ("IG_SORT", "IG_MODE", "IG_SEARCH")}
        library.routines |= {("scan.h", f"IG_SCAN(sum, +, 0, {both}, {STORED[dtype]})")}
        library.routines |= {("scan.h", f"IG_SCAN(prod, *, 1, {both}, {STORED[dtype]})")}
        library.routines |= {("scan.h", f"IG_SCAN_PLACES(max, >=, {both})")}
    library.routines |= {("scan.h", "IG_SCAN_LOGSUMEXP(float32, float)")}
    library.routines |= {("linalg.h", f"IG_{name}(float64, double)") for name in ("CHOLESKY", "LU", "TRIANGULAR")}
    library.routines |= {("qr_svd.h", "")}
    return library


@pytest.mark.skipif(not X86, reason="these are instruction sets of x86-64")
@pytest.mark.parametrize("isa", ISAS)
def test_everything_fits_into_one_file(isa: str, tmp_path: Path) -> None:
    tools = find()
    source = tmp_path / "everything.c"
    source.write_text(everything().text())
    flags = [flag for flag in tools.flags(find_isa(isa)) if not flag.startswith("-Wl,")]
    made = subprocess.run([*tools.command, *flags, "-fsyntax-only", str(source)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def test_every_math_function_is_defined_once() -> None:
    defined = HEADERS.definitions()
    for name in math_library.functions():
        assert name == math_library.PRELUDE or defined[name] in math_library.RESOURCES


class Quantized(nn.Module):
    """int8 layers beside a float floor division, which rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.b(F.relu(self.a(x))), x // 0.3, torch.remainder(x, 0.3), torch.round(x)


def test_a_floor_division_beside_int8_layers_compiles() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 32)
    prepared = ingot.quantize.prepare(ingot.capture(Quantized().eval(), (x,)), ingot.quantize.int8_static())
    ingot.quantize.calibrate(prepared, [(x,)])
    program = ingot.quantize.convert(prepared)
    found, expected = ingot.compile(program)(x), program(x)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0.05)
    for one, other in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other)
