"""The CPU target for an Arm processor: libraries run in an emulator, and compiled models are called like any other."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.build.cache import Cache
from ingot.codegen.build.isa import find_isa
from ingot.codegen.build.toolchain import find_for
from ingot.config import Settings
from ingot.targets.cpu.codegen.module_emitter import CSource
from ingot.targets.cpu.target import CpuTarget
from ingot_runtime.native.native_library import NativeLibrary
from tests.support.arm_emulation.emulator import PROCESSORS, EmulatedLibrary


class EmulatedArmTarget(CpuTarget):
    """`isa` is the one instruction set that it compiles for and runs."""

    def __init__(self, isa: str) -> None:
        self.isa = isa

    def build(
        self, source: CSource, machines: str | Sequence[str] | None = None, *, cache: bool = True
    ) -> dict[str, bytes]:
        one = find_isa(self.isa)
        store = Cache.from_settings(Settings.from_environment()) if cache else Cache(None)
        return {self.isa: store.read_library(source.text, one, find_for(one), extra_flags=(f'-DIG_ISA="{self.isa}"',))}

    def host_library(self) -> str:
        return self.isa

    def load_library(self, data: bytes, member: str) -> NativeLibrary:
        return EmulatedLibrary(data, PROCESSORS[self.isa])


EMULATED = {isa: EmulatedArmTarget(isa) for isa in PROCESSORS}
