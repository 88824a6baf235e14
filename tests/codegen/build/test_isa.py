from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ingot.codegen.build import isa
from ingot.errors import UnsupportedMachine
from ingot_runtime import cpu_features

# The flags of one core of four real machines, cut down to what matters and something that does not.
_SSE2 = "fpu vme tsc msr fxsr sse sse2 ht syscall nx lm constant_tsc"
_V2 = f"{_SSE2} pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
_V3 = f"{_V2} fma movbe xsave avx f16c abm bmi1 avx2 bmi2 erms"
_V4 = f"{_V3} avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl"
_BF16 = f"{_V4} avx512_bf16 avx512_vnni gfni"


def _cpuinfo(*cores: str, word: str = "flags") -> str:
    return "\n\n".join(
        f"processor\t: {i}\nmodel name\t: One\n{word}\t\t: {core}\nbugs\t\t: none" for i, core in enumerate(cores)
    )


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (_SSE2, "x86-64"),
        (_V2, "x86-64"),
        (_V3, "x86-64-v3"),
        (_V3.replace("fma ", ""), "x86-64"),
        (_V4, "x86-64-v4"),
        (_V4.replace("avx512vl", ""), "x86-64-v3"),
        (f"{_V4} avx512_vnni", "x86-64-v4"),
        (_BF16, "x86-64-v4-bf16"),
        (f"{_BF16} amx_bf16 amx_tile amx_int8", "x86-64-v4-amx"),
        (f"{_BF16} amx_tile amx_int8", "x86-64-v4-bf16"),
        (_BF16.replace("xsave", ""), "x86-64"),
    ],
)
def test_the_best_of_an_x86_machine(flags: str, name: str) -> None:
    having = cpu_features.from_cpuinfo(_cpuinfo(flags, flags), "x86_64")
    assert cpu_features.best(isa.ISAS, having) == name


def test_what_one_core_lacks_the_machine_lacks() -> None:
    having = cpu_features.from_cpuinfo(_cpuinfo(_V4, _V3), "x86_64")
    assert cpu_features.best(isa.ISAS, having) == "x86-64-v3"
    assert cpu_features.missing("x86-64-v4", having) == ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("fp asimd evtstrm aes", "aarch64"),
        ("fp asimd atomics asimdrdm asimddp", "aarch64-dotprod"),
        ("fp asimd asimddp", "aarch64"),
        ("fp asimd atomics asimdrdm asimddp bf16", "aarch64-dotprod"),
        ("fp asimd atomics asimdrdm asimddp i8mm bf16", "aarch64-bf16"),
    ],
)
def test_the_best_of_an_arm_machine(flags: str, name: str) -> None:
    having = cpu_features.from_cpuinfo(_cpuinfo(flags, word="Features"), "aarch64")
    assert cpu_features.best(isa.ISAS, having) == name
    assert cpu_features.missing("x86-64", having) == ["x86_64", "sse2"]


def test_what_linux_hands_a_process_on_an_arm_machine() -> None:
    base = 1 << 0 | 1 << 1
    dot = base | 1 << 8 | 1 << 12 | 1 << 20
    found = [cpu_features.from_hwcaps(words) for words in ((base, 0), (dot, 0), (dot, 1 << 13), (dot, 3 << 13))]
    assert [cpu_features.best(isa.ISAS, having) for having in found] == [
        "aarch64",
        "aarch64-dotprod",
        "aarch64-dotprod",
        "aarch64-bf16",
    ]


def test_a_machine_that_says_nothing_has_what_its_architecture_always_has() -> None:
    assert cpu_features.best(isa.ISAS, cpu_features.from_cpuinfo("", "x86_64")) == "x86-64"
    assert cpu_features.best(isa.ISAS, cpu_features.from_cpuinfo("", "aarch64")) == "aarch64"
    assert cpu_features.best(isa.ISAS, cpu_features.from_cpuinfo("", "riscv64")) == "plain"
    assert cpu_features.best(["x86-64", "no such"], cpu_features.from_cpuinfo("", "riscv64")) is None


def test_macs_with_intel_processors() -> None:
    said = {
        "machdep.cpu.features": b"FPU VME SSE SSE2 SSE3 SSSE3 FMA CX16 SSE4.1 SSE4.2 MOVBE POPCNT XSAVE AVX1.0 F16C\0",
        "machdep.cpu.extfeatures": b"SYSCALL XD LAHF LZCNT EM64T\0",
        "machdep.cpu.leaf7_features": b"BMI1 AVX2 BMI2 ERMS AVX512F AVX512DQ AVX512CD AVX512BW AVX512VL\0",
    }
    assert cpu_features.best(isa.ISAS, cpu_features.from_sysctl(said.__getitem__, "x86_64")) == "x86-64-v4-macos"
    said["machdep.cpu.extfeatures"] = b"SYSCALL XD LAHF EM64T\0"
    assert cpu_features.best(isa.ISAS, cpu_features.from_sysctl(said.__getitem__, "x86_64")) == "x86-64-macos"


def test_macs_with_arm_processors() -> None:
    def machine(*features: str) -> str | None:
        there = {f"hw.optional.arm.FEAT_{name}": (1).to_bytes(4, "little") for name in features}
        there.setdefault("hw.optional.arm.FEAT_BF16", bytes(4))
        having = cpu_features.from_sysctl(lambda name: there.get(name, b""), cpu_features.architecture("arm64"))
        return cpu_features.best(isa.ISAS, having)

    assert machine() == "aarch64-macos"
    assert machine("LSE", "RDM", "DotProd") == "aarch64-dotprod-macos"
    assert machine("LSE", "RDM", "DotProd", "I8MM", "BF16") == "aarch64-bf16-macos"


def test_a_mac_runs_no_library_for_linux() -> None:
    having = cpu_features.from_sysctl(lambda name: b"", "aarch64")
    assert cpu_features.missing("aarch64-macos", having) == []
    assert cpu_features.missing("aarch64", having) == ["linux"]
    assert cpu_features.best(["aarch64", "plain"], having) is None
    linux = cpu_features.from_cpuinfo("", "aarch64")
    assert cpu_features.missing("aarch64-macos", linux) == ["macos"]
    assert cpu_features.best(["aarch64-macos", "aarch64"], linux) == "aarch64"


def test_names_that_stand_for_several() -> None:
    for name, isas in isa.GROUPS.items():
        assert tuple(one.name for one in isa.find_isas([name, *isas])) == isas
    assert {one.architecture for one in isa.find_isas(["portable+aarch64"])} == {"x86_64", "aarch64"}
    assert {one.system for one in isa.find_isas(["portable+aarch64+macos"])} == {"linux", "macos"}


def test_architectures_have_one_name_each() -> None:
    assert [cpu_features.architecture(name) for name in ("AMD64", "x86_64", "arm64", "riscv64")] == [
        "x86_64",
        "x86_64",
        "aarch64",
        "riscv64",
    ]


def test_this_machine_can_run_its_own() -> None:
    best = isa.host()
    assert isa.missing_features(best) == []
    assert isa.find_isa(best.name) is best
    if cpu_features.architecture() in ("x86_64", "aarch64"):
        assert best.name != "plain" and best.architecture == cpu_features.architecture()
    foreign = "aarch64" if cpu_features.architecture() != "aarch64" else "x86-64"
    assert isa.missing_features(isa.find_isa(foreign))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedMachine) as caught:
        isa.find_isa("x86-64-v5")
    message = str(caught.value)
    assert "'x86-64-v5'" in message and all(name in message for name in isa.ISAS) and isa.host().name in message


def test_portable_names_several() -> None:
    found = isa.find_isas(["portable", "x86-64-v3", "plain"])
    assert [one.name for one in found] == [*isa.PORTABLE, "plain"]
    assert found[0].has_amx and found[1].has_bf16 and found[2].has_masks and found[3].vector_bits == 256


def test_the_two_tables_tell_of_the_same_sets() -> None:
    assert list(isa.ISAS) == list(cpu_features.FEATURES)
    for name, one in isa.ISAS.items():
        assert one.name == str(one) == name and one.features == cpu_features.FEATURES[name]
        assert (one.architecture is None) == (not one.features) and one.features[:1] == (one.architecture,)[
            : len(one.features)
        ]


def test_lanes() -> None:
    assert isa.find_isa("x86-64-v4").lanes(32) == 16
    assert isa.find_isa("x86-64-v3").lanes(64) == 4
    assert isa.find_isa("plain").lanes(32) == 1


def test_the_runtime_s_half_needs_nothing_but_python() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('ingot', 'torch', 'numpy')))\n"
        "import importlib.util as u; s = u.spec_from_file_location('machine', sys.argv[1]); m = u.module_from_spec(s)\n"
        "s.loader.exec_module(m); print(m.best(m.FEATURES))"
    )
    path = str(Path(cpu_features.__file__))
    said = subprocess.run((sys.executable, "-I", "-c", code, path), capture_output=True, text=True, check=True).stdout
    assert said.strip() == isa.host().name
