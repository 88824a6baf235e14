"""What the device text of a module holds besides its kernels: headers and functions of the math library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from ingot.codegen.headers import PORTABLE
from ingot.codegen.math_library import source_of

# Functions that a device has instructions for: those of the math library take another name.
CONVERSIONS = ("f32_to_bf16", "bf16_to_f32", "f32_to_f16", "f16_to_f32", "as_bf16_f32", "as_f16_f32")


@dataclass
class DeviceLibrary:
    """Filled while kernels are written. `functions` are of the math library, `headers` files of `cu/` or portable ones,
    in the order in which they must stand, and `macros` what is written out of them, by header."""

    functions: set[str] = field(default_factory=set)
    headers: dict[str, None] = field(default_factory=dict)
    macros: dict[str, dict[str, None]] = field(default_factory=dict)

    def use(self, header: str, macro: str = "") -> None:
        """Includes a header, and behind it the text of a macro that it defines."""
        self.headers.setdefault(header)
        if macro:
            self.macros.setdefault(header, {}).setdefault(macro)

    def add(self, other: DeviceLibrary) -> None:
        """Includes behind all else what another library holds."""
        self.functions |= other.functions
        for header in other.headers:
            self.use(header)
            for macro in other.macros.get(header, ()):
                self.use(header, macro)

    def select(self, used: Iterable[DeviceLibrary]) -> DeviceLibrary:
        """What these libraries, which were added to this one, hold, in the order in which it stands here."""
        wanted = DeviceLibrary()
        for one in used:
            wanted.add(one)
        made = DeviceLibrary(wanted.functions)
        for header in self.headers:
            if header in wanted.headers:
                made.use(header)
                for macro in self.macros.get(header, ()):
                    if macro in wanted.macros.get(header, ()):
                        made.use(header, macro)
        return made

    def text(self) -> str:
        renamed = [f"#define ig_{name} ig_portable_{name}" for name in CONVERSIONS]
        restored = [f"#undef ig_{name}" for name in CONVERSIONS]
        parts = [device_header("prelude.cuh"), *renamed, source_of(sorted(self.functions)), *restored]
        parts += [device_header("ptx.cuh"), device_header("conversions.cuh")]
        for header in self.headers:
            parts += [device_header(header), *self.macros.get(header, ())]
        return "\n".join(parts)


@cache
def device_header(name: str) -> str:
    """The text of a header of `cu/`, or of one that C targets share."""
    if name.endswith(".h"):
        return PORTABLE.read(name)
    return (files("ingot.targets.cuda.codegen") / "cu" / name).read_text(encoding="utf-8")
