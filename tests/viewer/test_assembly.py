"""The machine code of kernels: of a model that is compiled on the way, of a compiled one, and of files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.codegen.build.cache import Cache
from ingot.codegen.build.isa import host
from ingot.errors import ViewError
from ingot.viewer.assembly import assembly_texts, disassemblers
from ingot.viewer.assembly.disassemblers import find_objdump, run_tool
from ingot.viewer.assembly.gpu_code import list_ptx
from ingot.viewer.assembly.machine_code import _parse, list_machine_code
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.entry import view_compiled, view_program
from ingot.viewer.page import export_page
from tests.support.cuda_emulation.toolkit import needs_nvrtc
from tests.viewer.models import Deep, Mlp
from tests.viewer.test_command import MODELS, _data_of, run
from tests.viewer.views import lines_of

needs_objdump = pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump: install binutils")
# Lines of GNU's objdump and of LLVM's.
GNU = """
model.so:     file format elf64-x86-64

0000000000001000 <k0>:
k0():
/tmp/x/././model.c:12
    1000:\tpush   rbp
    1001:\tcall   1100 <helper>
model.c:44 (discriminator 3)
    1006:\tjne    1010 <k0+0x10>
/usr/include/math.h:7
    1008:\tvmovss xmm0,DWORD PTR [rip+0x2a05]        # 4000 <faults.0+0x88>
    1010:\tret

0000000000001100 <helper>:
    1100:\tjmp    1200 <memcpy@plt>
"""
LLVM = """
00000000000000a0 <k0>:
; k0():
; ./model.c:12
      a0: pushq\t%rbp
; ./model.c:44
      a1: jne\t0xb0 <k0+0x10>
"""


def test_what_objdump_writes() -> None:
    functions = _parse(GNU.split("\n"), frozenset({"k0"}))
    lines = functions["k0"].lines
    assert [line.text.split() for line in lines] == [
        ["0", "push", "rbp"],
        ["1", "call", "helper"],
        ["6", "jne", "10"],
        ["8", "vmovss", "xmm0,DWORD", "PTR", "[rip+0x2a05]"],
        ["10", "ret"],
    ]
    assert [line.source for line in lines] == [11, 11, 43, -1, -1], "a line of another file is none of the model's"
    assert {line.kernel for line in lines} == {"k0"} and functions["helper"].lines[0].kernel == ""
    assert functions["k0"].calls == {"helper"}
    (first, second) = _parse(LLVM.split("\n"), frozenset({"k0"}))["k0"].lines
    assert (first.source, second.source, second.text.split()) == (11, 43, ["1", "jne", "10"])


@pytest.fixture(scope="module")
def program() -> ingot.Program:
    return ingot.capture(Deep(2).eval(), (torch.ones(4, 16),))


@needs_objdump
def test_every_kernel_has_its_instructions(program: ingot.Program) -> None:
    data = collect_program(program, ViewOptions(disassembly=True)).to_json()
    code, assembly = data["stages"][-1]["texts"]
    assert (code["language"], assembly["language"], assembly["name"]) == ("c", "assembly", host().name)
    found: dict[int, list[str]] = {}
    for link, text in lines_of(data, assembly):
        found.setdefault(link, []).append(text)
    names = [kernel["name"] for kernel in data["kernels"]]
    for number, name in enumerate(names):
        assert found[number][0] == f"{name}:" and any("ret" in text for text in found[number])
    # Instructions come from lines of the kernel, or of what is inlined in it.
    runs = assembly["sources"]
    sources = [source for source, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]
    listed = lines_of(data, assembly)
    assert len(sources) == len(listed)
    lines = lines_of(data, code)
    for number, kernel in enumerate(data["kernels"]):
        own = [s for s, (link, _) in zip(sources, listed, strict=True) if link == number and s >= 0]
        inside = [source for source in own if kernel["first"] <= source <= kernel["last"]]
        assert len(inside) > 5 and all(lines[source][0] == number for source in inside)
        assert all(0 <= source < len(lines) for source in own)
    assert len(export_page(data, "run();", "")) < 5_000_000 and not data["notes"]


@needs_objdump
def test_lines_for_a_debugger_leave_the_code_as_it_is(program: ingot.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[str, bytes]] = []
    read = Cache.read_library

    def keep(self: Cache, source: str, isa: Any, toolchain: Any, **options: Any) -> bytes:
        library = read(self, source, isa, toolchain, **options)
        if "extra_flags" in options:
            built.append((" ".join(options["extra_flags"]), library))
        return library

    monkeypatch.setattr(Cache, "read_library", keep)
    collect_program(program, ViewOptions(disassembly=True, profile=True))
    (with_lines, first), (without, second) = sorted(built, key=lambda item: "-g1" not in item[0])
    assert "-g1" in with_lines and "-g" not in without
    listings = [[line.text for line in list_machine_code(code, host().name, ["k0", "k1"])] for code in (first, second)]
    assert listings[0] == listings[1]


@pytest.mark.parametrize("tool", ["objdump", "llvm-objdump"])
def test_the_tools_of_gnu_and_llvm_agree(program: ingot.Program, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    monkeypatch.setattr(disassemblers, "_OBJDUMP", (tool,))
    data = collect_program(program, ViewOptions(disassembly=True)).to_json()
    text = data["stages"][-1]["texts"][-1]
    runs = text["sources"]
    known = sum(count for source, count in zip(runs[::2], runs[1::2], strict=True) if source >= 0)
    listed = lines_of(data, text)
    assert {link for link, _ in listed} >= set(range(len(data["kernels"]))) and known > 0.9 * len(listed)
    assert any("ymm" in line or "zmm" in line or " v" in line for _, line in listed)


@needs_objdump
def test_compiled_models_and_files(program: ingot.Program, tmp_path: Path) -> None:
    compiled = ingot.compile(program, threads=1)
    data = view_compiled(compiled, compiled._module, compiled._source, disassembly=True).data
    assembly = data["stages"][-1]["texts"][-1]
    assert assembly["language"] == "assembly" and set(assembly["sources"][::2]) == {-1}, "built without lines"
    assert {link for link, _ in lines_of(data, assembly)} >= set(range(len(data["kernels"])))
    compiled.save(tmp_path / "m.ingot")
    result = run(str(tmp_path / "m.ingot"), "--disassembly", "--export", str(tmp_path / "p.html"))
    assert result.exit_code == 0, result.stderr
    assert _data_of(tmp_path / "p.html")["stages"][-1]["texts"][-1]["language"] == "assembly"


@needs_objdump
def test_the_command(tmp_path: Path) -> None:
    for more, languages in ((["--disassembly"], ["c", "assembly"]), ([], ["c"])):
        result = run(f"{MODELS}:mlp", *more, "--export", str(tmp_path / "p.html"))
        assert result.exit_code == 0, result.stderr
        texts = _data_of(tmp_path / "p.html")["stages"][-1]["texts"]
        assert [text["language"] for text in texts] == languages


def test_a_missing_tool_is_a_note(program: ingot.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if "objdump" in name else f"/usr/bin/{name}")
    with pytest.raises(ViewError, match="binutils"):
        find_objdump()
    monkeypatch.setattr(assembly_texts, "_list_c", lambda *_: (find_objdump(), []))
    data = view_program(program, disassembly=True).data
    assert len(data["stages"][-1]["texts"]) == 1 and "binutils" in data["notes"][-1]


@needs_objdump
def test_what_is_not_a_library_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ViewError, match="could not take the code apart"):
        run_tool([find_objdump(), "-d"], b"\x7fELF damaged", "model.so")
    monkeypatch.setattr(disassemblers, "_SECONDS", 0.05)
    with pytest.raises(ViewError, match="timed out"):
        run_tool(["sleep", "5"], b"", "5")


@needs_nvrtc
def test_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    program = ingot.capture(Mlp().eval(), (torch.ones(3, 4),))
    options = ViewOptions(target="cuda", disassembly=True)
    if disassemblers.find_nvdisasm() is not None:
        data = collect_program(program, options).to_json()
        text = data["stages"][-1]["texts"][-1]
        lines = lines_of(data, text)
        assert text["name"] == "sm_90a" and any("EXIT" in line for _, line in lines) and not data["notes"]
        assert {link for link, _ in lines} >= set(range(len(data["kernels"])))
    monkeypatch.setattr(assembly_texts, "find_nvdisasm", lambda: None)
    data = collect_program(program, options).to_json()
    text = data["stages"][-1]["texts"][-1]
    lines = lines_of(data, text)
    assert text["name"] == "PTX, compute_90" and any(".visible .entry k0(" in line for _, line in lines)
    assert {link for link, _ in lines} >= set(range(len(data["kernels"]))) and "nvidia-cuda-nvdisasm" in data["notes"][
        -1
    ]


def test_ptx_of_other_functions_is_left_out() -> None:
    text = ".visible .entry k1(\n)\n{\n\tret;\n}\n.func (.param .b32 r) helper(\n)\n{\n\tret;\n}\n"
    text += ".visible .entry k0()\n{\n}\n"
    assert [line.text for line in list_ptx([text], ["k0", "k1"])] == [
        "k0:", ".visible .entry k0()", "{", "}", "", "k1:", ".visible .entry k1(", ")", "{", "    ret;", "}", "",
    ]  # fmt: skip


def test_objdump_is_run_without_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def note(command: Any, **options: Any) -> Any:
        seen.append((command, options))
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", note)
    run_tool(["objdump", "-d"], b"", "model.so")
    ((command, options),) = seen
    assert command == ["objdump", "-d", "model.so"] and "shell" not in options and options["timeout"] > 0
