"""What the device text of a module holds besides its kernels: headers and functions of the math library."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from ingot.codegen.headers import PORTABLE
from ingot.codegen.math_library import source_of


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

    def text(self) -> str:
        parts = [device_header("prelude.cuh"), source_of(sorted(self.functions)), device_header("ptx.cuh")]
        for header in self.headers:
            parts += [device_header(header), *self.macros.get(header, ())]
        return "\n".join(parts)


@cache
def device_header(name: str) -> str:
    """The text of a header of `cu/`, or of one that C targets share."""
    if name.endswith(".h"):
        return PORTABLE.read(name)
    return (files("ingot.targets.cuda.codegen") / "cu" / name).read_text(encoding="utf-8")
