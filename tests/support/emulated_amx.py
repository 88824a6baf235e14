"""This machine's instruction set, and AMX in C beside it: emulated_amx.h takes the place of AMX's instructions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ingot.codegen.build.isa import host

HEADER = Path(__file__).with_suffix(".h")
EMULATED_AMX = replace(host(), name="emulated-amx", flags=(*host().flags, "-include", str(HEADER)))
# The same on a machine that does not let the process use it.
DENIED_AMX = replace(EMULATED_AMX, name="denied-amx", flags=(*EMULATED_AMX.flags, "-DIG_AMX_DENIED"))
