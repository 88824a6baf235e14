"""Forged, damaged and hostile compiled files: each is a named error, nothing is executed, nothing is written.

The library of every file here leaves a marker the moment it is loaded, so that none of it may be.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot_runtime import FileError, IngotError, UntrustedFile, check_container, describe, load
from ingot_runtime.__main__ import main
from ingot_runtime.container import canonical_json
from ingot_runtime.model import model_of
from ingot_runtime.native import elf
from tests.runtime import hostile
from tests.runtime.native_model import COMPILER, ISA, needs_compiler, write

pytestmark = needs_compiler

LIBRARY, WEIGHTS = f"native/{ISA}.so", "native/weights.safetensors"
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 1.5, -0.0, "", "s0", "../../etc/passwd", "\0", "é" * 300),
    *([], {}, [[]], {"kind": "tuple"}, ["s0"], {"input": 0}, "s0**s0", "1//0", "2**99999", "(" * 2000),
)


class Trap:
    """A file that would be loaded, whose code must not be; and its parts."""

    def __init__(self, folder: Path) -> None:
        self.code, self.marker = hostile.build_trap(folder)
        self.path = write(folder / "trap.ingot", libraries={ISA: self.code})
        self.data = self.path.read_bytes()
        with hostile.open_bytes(self.data) as container:
            self.members, self.fields = hostile.parts_of(container)

    def forged(self, edit: hostile.Edit) -> bytes:
        with hostile.open_bytes(self.data) as container:
            members, fields = hostile.parts_of(container)
        edit(members, fields)
        return hostile.forge(members, fields)


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Trap:
    return Trap(tmp_path_factory.mktemp("trap"))


@pytest.fixture(autouse=True)
def unmarked(trap: Trap) -> Iterator[None]:
    """What one test let run must not fail the next."""
    yield
    trap.marker.unlink(missing_ok=True)


def refuse(trap: Trap, data: bytes, folder: Path, trust: Any = True) -> FileError:
    """The error for a file of these bytes. Nothing of it may have run, and nothing may be there that was not."""
    file = folder / "m.ingot"
    file.write_bytes(data)
    before = sorted(os.listdir(folder))
    with hostile.watch() as seen, pytest.raises(FileError) as caught:
        load(file, trust=trust)
    assert seen == [] and not trap.marker.exists() and sorted(os.listdir(folder)) == before
    assert caught.value.what and str(file) in str(caught.value)
    return caught.value


def native(**changes: Any) -> hostile.Edit:
    return lambda members, fields: fields["native"].update(changes)


def first_input(**changes: Any) -> hostile.Edit:
    return lambda members, fields: fields["native"]["inputs"][0].update(changes)


def member(name: str, change: Callable[[bytes], bytes]) -> hostile.Edit:
    return lambda members, fields: members.update({name: change(members[name])})


def symbol(**changes: Any) -> hostile.Edit:
    return lambda members, fields: fields["native"]["symbols"]["s0"].update(changes)


def header(text: str, size: int | None = None) -> hostile.Edit:
    """Another safetensors header for the weights; `size` is what the file says of its length."""
    data = text.encode()
    return member(WEIGHTS, lambda old: struct.pack("<Q", len(data) if size is None else size) + data + bytes(64))


def deep(depth: int) -> Any:
    tree: Any = {"input": 0}
    for _ in range(depth):
        tree = {"kind": "tuple", "name": "tuple", "keys": [0], "children": [tree]}
    return tree


MUTATIONS: dict[str, hostile.Edit] = {
    "library cut by a byte": member(LIBRARY, lambda data: data[:-1]),
    "library cut in half": member(LIBRARY, lambda data: data[: len(data) // 2]),
    "empty library": member(LIBRARY, lambda data: b""),
    "library is a script": member(LIBRARY, lambda data: b"#!/bin/sh\ntouch executed\n"),
    "32-bit library": member(LIBRARY, lambda data: data[:4] + b"\x01" + data[5:]),
    "library of another machine": member(LIBRARY, lambda data: data[:18] + b"\xf3\x00" + data[20:]),
    "executable in place of a library": member(LIBRARY, lambda data: data[:16] + b"\x02\x00" + data[18:]),
    "section table beyond the end": member(LIBRARY, lambda data: data[:40] + b"\xff" * 8 + data[48:]),
    "segments beyond the end": member(LIBRARY, lambda data: data[:32] + b"\xff" * 8 + data[40:]),
    "weights cut by a byte": member(WEIGHTS, lambda data: data[:-1]),
    "weights longer": member(WEIGHTS, lambda data: data + b"\0"),
    "empty weights": member(WEIGHTS, lambda data: b""),
    "weights and library swapped": lambda members, fields: members.update(
        {WEIGHTS: members[LIBRARY], LIBRARY: members[WEIGHTS]}
    ),
    "weights header of 2**63 bytes": header("{}", 2**63),
    "weights header that is not JSON": header("{"),
    "weights header of nan": header('{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,64]}}'),
    "weights offsets that overflow": header(
        '{"a":{"dtype":"F32","shape":[16],"data_offsets":[18446744073709551600,64]}}'
    ),
    "weights offsets below zero": header('{"a":{"dtype":"F32","shape":[16],"data_offsets":[-64,0]}}'),
    "weights shape that overflows": header(
        '{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,64]}}'
    ),
    "weights nested too deeply": header('{"a":' + "[" * 5000 + "]" * 5000 + "}"),
    "sample inputs gone": lambda members, fields: members.pop("native/sample_inputs.safetensors") and None,
    "sample outputs empty": member("native/sample_outputs.safetensors", lambda data: b""),
    "sample outputs are the inputs": lambda members, fields: members.update(
        {"native/sample_outputs.safetensors": members["native/sample_inputs.safetensors"]}
    ),
    "no library": native(libraries=[]),
    "a library that is not there": native(libraries=[{"isa": ISA, "member": "native/absent.so"}]),
    "a library outside the file": native(libraries=[{"isa": ISA, "member": "/lib/libc.so.6"}]),
    "a library by traversal": native(libraries=[{"isa": ISA, "member": "../../m.so"}]),
    "the source as a library": native(libraries=[{"isa": ISA, "member": "native/model.c"}]),
    "an unknown instruction set": native(libraries=[{"isa": "z80", "member": LIBRARY}]),
    "libraries that are text": native(libraries="x"),
    "another ABI": native(abi=1),
    "an ABI that is a bool": native(abi=True),
    "no native part": lambda members, fields: fields.update(native=[]),
    "a negative dim": first_input(shape=[-1, 4]),
    "a giant dim": first_input(shape=[2**62, 4]),
    "a dim of 10**400": first_input(shape=[10**400]),
    "a fraction as a dim": first_input(shape=[1.5, 4]),
    "a bool as a dim": first_input(shape=[True, 4]),
    "a thousand dims": first_input(shape=[1] * 1000),
    "a dim of an unknown symbol": first_input(shape=["s9", 4]),
    "a dim that is a call": first_input(shape=["__import__('os')", 4]),
    "a dim nested too deeply": first_input(shape=["(" * 100_000 + "s0" + ")" * 100_000, 4]),
    "a dim of a giant power": first_input(shape=["2**99999999999", 4]),
    "a dim divided by zero": first_input(shape=["s0//0", 4]),
    "an unknown dtype": first_input(dtype="object"),
    "two inputs of one name": lambda members, fields: fields["native"]["inputs"][0].update(
        name=fields["native"]["inputs"][1]["name"]
    ),
    "bounds the wrong way round": symbol(min=5, max=4),
    "a bound below zero": symbol(min=-1),
    "a bound that is text": symbol(max="x"),
    "a call nested too deeply": lambda members, fields: fields["native"]["call"].update({"in": deep(300)}),
    "a call without arguments": lambda members, fields: fields["native"]["call"].update({"in": None}),
    "a result of an output that is not there": lambda members, fields: fields["native"]["call"].update(
        {"out": {"output": 99}}
    ),
    "a tolerance without end": native(
        sample={
            "inputs": "native/sample_inputs.safetensors",
            "outputs": "native/sample_outputs.safetensors",
            "tolerance": 10**400,
        }
    ),
}


def test_the_trap_would_be_loaded(trap: Trap) -> None:
    subprocess.run([sys.executable, "-c", f"import ingot_runtime; ingot_runtime.load({str(trap.path)!r})"], check=False)
    assert trap.marker.exists()
    trap.marker.unlink()


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_with_its_hashes_in_order(name: str, trap: Trap, tmp_path: Path) -> None:
    refuse(trap, trap.forged(MUTATIONS[name]), tmp_path)


def test_a_library_without_our_functions(trap: Trap, tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text("int other(void) { return 1; }")
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", tmp_path / "other.c", "-o", tmp_path / "other.so"], check=True)
    data = (tmp_path / "other.so").read_bytes()
    error = refuse(trap, trap.forged(member(LIBRARY, lambda old: data)), tmp_path)
    assert "no function ingot_describe" in str(error)


def test_nobody_is_trusted(trap: Trap, tmp_path: Path) -> None:
    assert isinstance(refuse(trap, trap.data, tmp_path, trust=False), UntrustedFile)


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        hostile.nest(100_000),
        b'{"format":"ingot","members":{},"native":' + hostile.nest(50_000) + b',"schema":3}',
        b'{"format":"ingot","members":{},"schema":3,"x":NaN}',
        b'{"format":"ingot","members":{},"schema":3,"x":1e999}',
        b'{"format":"ingot","members":{},"schema":3,"x":' + b"9" * 5000 + b"}",
        b'{"format":"ingot","format":"ingot","members":{},"schema":3}',
        b'{"format":"ingot", "members":{}, "schema":3}',
        b'{"format":"ingot","members":{},"schema":3,"x":"' + b"a" * (17 << 20) + b'"}',
        b'{"format":"ingot","members":{"a":{"crc32":"00000000","sha256":[],"size":-1}},"schema":3}',
        b'{"format":"ingot","members":{"a":{"crc32":"00000000","sha256":[],"size":18446744073709551616}},"schema":3}',
        b'{"format":"ingot","members":{"../a":{"crc32":"00000000","sha256":[],"size":0}},"schema":3}',
        b'{"format":"ingot","members":{"/a":{"crc32":"00000000","sha256":[],"size":0}},"schema":3}',
        b'{"format":"ingot","members":{"signature.ed25519":{"crc32":"00000000","sha256":[],"size":0}},"schema":3}',
    ],
    ids=lambda data: repr(data[:60]),
)
def test_manifests(manifest: bytes, trap: Trap, tmp_path: Path) -> None:
    refuse(trap, hostile.archive_of([("manifest.json", manifest)]), tmp_path)


@pytest.mark.parametrize(
    "order",
    [
        "duplicate", "reversed", "extra", "missing", "manifest twice", "traversal", "absolute", "backslash",
    ],
)  # fmt: skip
def test_members_in_another_order(order: str, trap: Trap, tmp_path: Path) -> None:
    with hostile.open_bytes(trap.data) as container:
        parts = [("manifest.json", container.signed), *trap.members.items()]
    first, *rest = parts
    changed = {
        "duplicate": [*parts, rest[0]],
        "reversed": [first, *reversed(rest)],
        "extra": [*parts, ("zzz", b"more")],
        "missing": parts[:-1],
        "manifest twice": [first, *parts],
        "traversal": [*parts, ("../../evil", b"x")],
        "absolute": [*parts, ("/etc/evil", b"x")],
        "backslash": [*parts, ("..\\evil", b"x")],
    }[order]
    refuse(trap, hostile.archive_of(changed), tmp_path)
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("way", ["deflated", "link", "bomb", "comment", "appended", "prefixed"])
def test_archives_of_other_programs(way: str, trap: Trap, tmp_path: Path) -> None:
    file = tmp_path / "zip"
    with zipfile.ZipFile(
        file, "w", zipfile.ZIP_DEFLATED if way in ("deflated", "bomb") else zipfile.ZIP_STORED
    ) as made:
        with hostile.open_bytes(trap.data) as container:
            made.writestr("manifest.json", container.signed)
        for name, data in trap.members.items():
            info = zipfile.ZipInfo(name)
            if way == "link":
                info.external_attr = 0o120777 << 16
            made.writestr(info, b"/etc/passwd" if way == "link" else data)
        if way == "bomb":
            made.writestr("zeros", bytes(32 << 20))
        if way == "comment":
            made.comment = b"ingot manifest sha256 " + b"0" * 64
    data = {"appended": trap.data + b"\0", "prefixed": b"\0" + trap.data}.get(way) or file.read_bytes()
    file.unlink()
    refuse(trap, data, tmp_path)


@pytest.mark.parametrize("offset", [18, 22, 26, 28])  # sizes and lengths in the first local header
@pytest.mark.parametrize("value", [0, 1, 0xFFFF, 0xFFFFFFFF])
def test_sizes_in_headers(offset: int, value: int, trap: Trap, tmp_path: Path) -> None:
    data = bytearray(trap.data)
    width = 4 if offset < 26 else 2
    changed = (value & (2 ** (8 * width) - 1)).to_bytes(width, "little")
    if bytes(data[offset : offset + width]) == changed:
        pytest.skip("that is what it says")
    data[offset : offset + width] = changed
    refuse(trap, bytes(data), tmp_path)


class TestRandom:
    """Thousands of changes, by fixed seeds."""

    def test_bytes_of_a_file(self, trap: Trap) -> None:
        chosen = random.Random(17)
        for _ in range(3000):
            data = bytearray(trap.data)
            match chosen.randrange(5):
                case 0 | 1:
                    for _ in range(chosen.randint(1, 8)):
                        data[chosen.randrange(len(data))] ^= chosen.randint(1, 255)
                case 2:
                    del data[chosen.randrange(len(data)) :]
                case 3:
                    at, count = chosen.randrange(len(data)), chosen.randint(1, 200)
                    del data[at : at + count]
                case 4:
                    at, other = (chosen.randrange(len(data) - 64) for _ in range(2))
                    data[at : at + 64], data[other : other + 64] = data[other : other + 64], data[at : at + 64]
            if data == trap.data:
                continue
            with pytest.raises(FileError):
                check_container(memoryview(data))

    def test_bytes_of_members_with_their_hashes_in_order(self, trap: Trap) -> None:
        chosen = random.Random(18)
        names = [name for name in trap.members if name != "native/model.c"]
        with hostile.watch() as seen:
            for _ in range(600):
                name = chosen.choice(names)
                data = bytearray(trap.members[name])
                head = min(len(data), 512)  # where headers are
                for _ in range(chosen.randint(1, 4)):
                    data[chosen.randrange(head if chosen.random() < 0.7 else len(data))] ^= chosen.randint(1, 255)
                made = hostile.forge({**trap.members, name: bytes(data)}, trap.fields)
                with hostile.open_bytes(made) as container, pytest.raises(FileError):
                    model_of(container, trust=False)
        assert seen == [] and not trap.marker.exists()

    def test_junk_in_the_manifest(self, trap: Trap) -> None:
        chosen = random.Random(19)
        refused = total = 0
        with hostile.watch() as seen:
            for number in range(len(list(hostile.places(trap.fields)))):
                for _ in range(3):
                    fields = canonical_json.decode(canonical_json.encode(trap.fields))
                    container, key = list(hostile.places(fields))[number]
                    container[key] = chosen.choice(JUNK)
                    total += 1
                    try:
                        made = hostile.forge(trap.members, fields)
                    except ValueError:  # JSON cannot have it
                        continue
                    try:
                        with hostile.open_bytes(made) as opened:
                            model_of(opened, trust=False)
                    except FileError as error:
                        refused += not isinstance(error, UntrustedFile)
        assert seen == [] and not trap.marker.exists()
        assert refused > total / 3

    def test_bytes_of_a_library(self, trap: Trap) -> None:
        chosen = random.Random(20)
        for _ in range(2000):
            data = bytearray(trap.code)
            for _ in range(chosen.randint(1, 4)):
                data[chosen.randrange(64 if chosen.random() < 0.5 else len(data))] = chosen.randrange(256)
            elf.find_problem(
                memoryview(data)[: chosen.choice((len(data), chosen.randrange(len(data))))], hostile.FUNCTIONS
            )


@pytest.mark.parametrize("name", ["a negative dim", "another ABI", "empty weights", "a call nested too deeply"])
def test_commands_say_what_is_wrong(name: str, trap: Trap, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.ingot"
    file.write_bytes(trap.forged(MUTATIONS[name]))
    for arguments in (["describe", str(file)], ["self-test", str(file)], ["extract", str(file), str(tmp_path / "out")]):
        assert main(arguments) == 1
        assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(IngotError):
        describe(file)
    assert not trap.marker.exists() and os.listdir(tmp_path) == ["m.ingot"]
