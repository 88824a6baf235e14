"""The C headers of this target: the portable ones, and its own in `targets/cpu/codegen/c`, for vectors and threads."""

from __future__ import annotations

from ingot.codegen.headers import HeaderSet

HEADERS = HeaderSet(("ingot.codegen", "ingot.targets.cpu.codegen"), apart=("roofline.h",))


def resource(name: str) -> str:
    """The text of a header. No name that it defines is defined by another one."""
    return HEADERS.read(name)
