"""A compiled file: whole or refused, the right library or a sentence, weights mapped and aligned."""

import copy
import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot_runtime import (
    DamagedFile,
    FileError,
    MissingInstructionSet,
    Model,
    NotCompiled,
    UnsupportedSchema,
    check_container,
    cpu_features,
    load,
    open_container,
    parse_header,
    write_container,
)
from ingot_runtime.__main__ import HEADER, main
from ingot_runtime.container import canonical_json
from ingot_runtime.container.manifest import ABI, read_spec
from ingot_runtime.native import native_library
from tests.runtime import native_model
from tests.runtime.native_model import (
    AFFINE,
    COMPILER,
    ISA,
    B,
    W,
    library,
    needs_compiler,
    weights,
    write,
    write_affine,
)

pytestmark = needs_compiler

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_affine(tmp_path_factory.mktemp("native") / "m.ingot")


def repacked(path: Path, target: Path, native_fields: dict[str, Any] | None = None, **members: bytes | None) -> Path:
    """A sound file with another native part in its manifest, or with other members."""
    with open_container(path) as container:
        kept: dict[str, Any] = {name: bytes(container.read(name)) for name in container.names}
        manifest = {k: v for k, v in container.manifest.items() if k not in ("format", "schema", "members")}
        fields = copy.deepcopy(manifest)
    if native_fields is not None:
        fields["native"].update(native_fields)
    for name, data in members.items():
        del kept[name]
        if data is not None:
            kept[name] = data
    write_container(target, kept, fields)
    return target


class TestDamage:
    def test_every_changed_byte_is_refused(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        assert len(data) < 60_000
        check_container(memoryview(data))
        for at in range(len(data)):
            data[at] ^= 1 << at % 8
            try:
                check_container(memoryview(data))
            except FileError:
                pass
            else:
                raise AssertionError(f"a flipped bit in byte {at} was not seen")
            data[at] ^= 1 << at % 8

    def test_every_cut_is_refused(self, path: Path) -> None:
        data = memoryview(path.read_bytes())
        for length in range(len(data)):
            with pytest.raises(FileError):
                check_container(data[:length])

    def test_nothing_of_a_damaged_file_is_loaded(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(native_library, "NativeLibrary", lambda *_, **__: pytest.fail("the library was loaded"))
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 997):
            data[at] ^= 1
            (tmp_path / "m.ingot").write_bytes(data)
            with pytest.raises(FileError):
                load(tmp_path / "m.ingot")
            data[at] ^= 1

    def test_the_file_is_deterministic(self, path: Path, tmp_path: Path) -> None:
        assert write_affine(tmp_path / "again.ingot").read_bytes() == path.read_bytes()

    def test_other_tools_read_the_weights(self, path: Path) -> None:
        safetensors_numpy = pytest.importorskip("safetensors.numpy")
        with open_container(path) as container:
            found = safetensors_numpy.load(bytes(container.read("native/weights.safetensors")))
        np.testing.assert_array_equal(found["w"], W)
        np.testing.assert_array_equal(found["b"], B)
        assert found["pad.1"].tolist() == [0] * 48


class TestManifest:
    def test_a_file_without_native_code(self, tmp_path: Path) -> None:
        write_container(tmp_path / "m.ingot", {}, {"kind": "program"})
        with pytest.raises(NotCompiled, match="ingot compile"):
            load(tmp_path / "m.ingot")

    @pytest.mark.parametrize(("abi", "word"), [(ABI + 1, "newer"), (0, "older")])
    def test_another_abi(self, path: Path, tmp_path: Path, abi: int, word: str) -> None:
        with pytest.raises(UnsupportedSchema, match=word):
            load(repacked(path, tmp_path / "m.ingot", {"abi": abi}))

    def test_a_library_of_another_abi(self, tmp_path: Path) -> None:
        odd = library(source="affine.c", options=("-DABI=9",))
        with pytest.raises(UnsupportedSchema, match="ABI 9"):
            load(write_affine(tmp_path / "m.ingot", libraries={ISA: odd}))

    @pytest.mark.parametrize(
        "change",
        [
            {"abi": "1"}, {"abi": True}, {"abi": None}, {"inputs": None}, {"inputs": [1]}, {"inputs": [{}]},
            {"inputs": [{"name": "x", "dtype": "float31", "shape": []}]},
            {"inputs": [{"name": "x", "dtype": "float32", "shape": [-1, 4]}]},
            {"inputs": [{"name": "x", "dtype": "float32", "shape": [1.5, 4]}]},
            {"inputs": [{"name": "x", "dtype": "float32", "shape": ["s9", 4]}]},
            {"inputs": [{"name": "x", "dtype": "float32", "shape": ["__import__('os')", 4]}]},
            {"inputs": [{"name": "x", "dtype": "float32", "shape": [1] * 40}]},
            {"inputs": [{"name": "x", "dtype": "float32", "shape": ["s0"], "symbol": "s0"}]},
            {"inputs": [{"name": "x", "dtype": "float32", "shape": ["s0", 4], "mutated": 1}]},
            {"inputs": AFFINE["inputs"] * 2}, {"outputs": AFFINE["outputs"] * 2}, {"outputs": {}},
            {"outputs": [{"name": "y", "dtype": "float32", "shape": [None]}]},
            {"outputs": [{"name": "y", "dtype": "float32", "shape": [1], "scalar": True}]},
            {"symbols": []}, {"symbols": {"s0": {"name": "n", "min": -1, "max": 3}}},
            {"symbols": {"s0": {"name": "n", "min": 4, "max": 3}}}, {"symbols": {"s0": {"min": 4, "max": None}}},
            {"call": None}, {"call": {}}, {"call": {**AFFINE["call"], "in": {"input": 0}}},
            {"call": {**AFFINE["call"], "out": {"output": 1}}}, {"call": {**AFFINE["call"], "out": {"output": True}}},
            {"call": {**AFFINE["call"], "out": {"literal": {"code": "x"}}}},
            {"call": {**AFFINE["call"], "parameters": [1]}},
            {"call": {**AFFINE["call"], "out": {"kind": "tuple", "name": "t", "keys": [0], "children": []}}},
            {"call": {**AFFINE["call"], "out": {"kind": "eval", "name": "t", "keys": [], "children": []}}},
            {"libraries": [{"isa": ISA}]}, {"libraries": [{"isa": ISA, "member": "none.so"}]}, {"libraries": 3},
            {"weights": "none"}, {"weights": None}, {"weights_sha256": None}, {"source": "none"},
            {"sample": {"inputs": "none", "outputs": "none", "tolerance": 1}}, {"sample": 1},
            {"sample": {"inputs": "native/model.c", "outputs": "native/model.c", "tolerance": -1}},
            {"sample": {"inputs": "native/model.c", "outputs": "native/model.c", "tolerance": 1}},
        ],
    )  # fmt: skip
    def test_what_ingot_would_not_write(self, path: Path, tmp_path: Path, change: dict[str, Any]) -> None:
        with pytest.raises(DamagedFile) as caught:
            load(repacked(path, tmp_path / "m.ingot", change))
        assert caught.value.why and caught.value.fix

    def test_nesting_without_end(self, path: Path) -> None:
        tree: Any = {"output": 0}
        for _ in range(400):
            tree = {"kind": "list", "name": "list", "keys": [0], "children": [tree]}
        with open_container(path) as container:
            native_part = {**container.manifest["native"], "call": {**AFFINE["call"], "out": tree}}
            with pytest.raises(DamagedFile, match="deep"):
                read_spec({"native": native_part}, container.names, "m.ingot")
        assert canonical_json.encode(tree)


class TestLibraries:
    def test_the_best_of_several_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        libraries = {isa: library(isa, source="affine.c") for isa in ("plain", ISA)}
        path = write_affine(tmp_path / "m.ingot", libraries=libraries)
        with load(path) as model:
            assert model.isa == ISA
        monkeypatch.setattr(cpu_features, "features", lambda: frozenset[str]())
        with load(path) as model:
            assert model.isa == "plain"

    def test_a_machine_that_lacks_it_gets_a_sentence(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpu_features, "features", lambda: frozenset({"riscv64"}))
        with pytest.raises(MissingInstructionSet) as caught:
            load(path)
        assert f"{ISA} needs" in str(caught.value) and "ingot compile --isa" in str(caught.value)

    def test_an_instruction_set_that_is_not_known(self, path: Path, tmp_path: Path) -> None:
        libraries = [{"isa": "z80", "member": f"native/{ISA}.so"}]
        with pytest.raises(MissingInstructionSet, match="z80"):
            load(repacked(path, tmp_path / "m.ingot", {"libraries": libraries}))
        with pytest.raises(MissingInstructionSet, match="no library at all"):
            load(repacked(path, tmp_path / "m.ingot", {"libraries": []}))
        with pytest.raises(ValueError, match="z80"):
            write_affine(tmp_path / "m.ingot", libraries={"z80": b""})

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"libraries": {ISA: b"not a library"}}, "cannot be loaded"),
            ({"libraries": {"plain": None}}, "it is for"),
            ({"weights": {"w": W, "b": B + 1}}, "SHA-256"),
            ({"weights": {"w": W, "b": B, "c": B}}, "bytes"),
            ({"manifest_native": {**AFFINE, "outputs": []}}, "outputs"),
        ],
    )
    def test_a_library_of_another_file(self, tmp_path: Path, change: dict[str, Any], word: str) -> None:
        if change.get("libraries") == {"plain": None}:
            change = {"libraries": {"plain": library(source="affine.c")}}
        if "manifest_native" in change:
            change["manifest_native"]["call"] = {**AFFINE["call"], "out": {"literal": None}}
        with pytest.raises(DamagedFile, match=word) as caught:
            load(write_affine(tmp_path / "m.ingot", **change))
        assert "compile the model again" in str(caught.value)

    def test_a_library_without_our_functions(self, tmp_path: Path) -> None:
        (tmp_path / "other.c").write_text("int other(void) { return 1; }")
        assert COMPILER is not None
        subprocess.run([COMPILER, "-shared", "-fPIC", tmp_path / "other.c", "-o", tmp_path / "other.so"], check=True)
        with pytest.raises(DamagedFile, match="no function ingot_describe"):
            load(write_affine(tmp_path / "m.ingot", libraries={ISA: tmp_path / "other.so"}))

    @pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux has open")
    def test_a_library_is_unloaded_with_its_model(self, path: Path) -> None:
        def used() -> tuple[int, int]:
            gc.collect()
            maps = Path("/proc/self/maps").read_text()
            return len(os.listdir("/proc/self/fd")), maps.count("memfd:ingot") + maps.count(path.name)

        before = used()
        models = [load(path) for _ in range(3)]
        during = used()
        assert during[0] > before[0] and during[1] > before[1]
        del models
        assert used() == before

    def test_libraries_at_the_same_place_one_after_the_other(self, path: Path, tmp_path: Path) -> None:
        # The loader knows libraries by their paths: another file must not be taken for the one before.
        other = write(tmp_path / "other.ingot")
        for _ in range(3):
            with load(path) as model:
                assert model(np.ones((1, 4), np.float32)).tolist() == (W + B)[None].tolist()
            del model
            with load(other) as model:
                assert len(model.spec.inputs) == 6 and model.self_test() == 0
            del model

    def test_without_memory_files(self, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def refuse(name: str) -> int:
            raise OSError("not here")

        monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with load(path) as model:
            assert model(np.ones((1, 4), np.float32)).tolist() == (W + B)[None].tolist()
        assert list(tmp_path.iterdir()) == []

    def test_a_model_without_a_file(self, path: Path) -> None:
        with open_container(path) as container:
            spec = read_spec(container.manifest, container.names, "compiled here")
        room = np.zeros(weights().size + 64, np.uint8)
        begin = -room.ctypes.data % 64
        room[begin:][: weights().size] = np.frombuffer(b"".join(weights().member.data_chunks()), np.uint8)
        blob = native_library.Blob(room[begin:][: weights().size].data, 0)
        with Model(
            "compiled here", spec, native_library.NativeLibrary(memoryview(library(source="affine.c"))), blob, 0, None
        ) as model:
            assert model(np.ones((1, 4), np.float32)).tolist() == (W + B)[None].tolist()
            assert "compiled here" in model.describe()


class TestWeights:
    def test_they_are_aligned(self, tmp_path: Path) -> None:
        for more in (1, 63, 64, 65, 5000):
            path = write_affine(tmp_path / "m.ingot", more=more, members={"a" * more.bit_length(): b"x" * more})
            with open_container(path) as container:
                member = container.read("native/weights.safetensors")
                entries = parse_header(member)
                base = np.frombuffer(member, np.uint8).ctypes.data
                assert all((base + entry.begin) % 64 == 0 for name, entry in entries.items() if name[:3] != "pad")
                begin = min(entry.begin for entry in entries.values())
                assert {n: entries[n].begin - begin for n in weights(more).offsets} == weights(more).offsets
            with load(path) as model:
                assert model(np.ones((1, 4), np.float32)).tolist() == (W + B)[None].tolist()

    def test_weights_that_are_not_aligned_are_refused(self, path: Path, tmp_path: Path) -> None:
        with open_container(path) as container:
            member = bytes(container.read("native/weights.safetensors"))
        length = int.from_bytes(member[:8], "little")
        shifted = (length + 1).to_bytes(8, "little") + member[8 : 8 + length] + b" " + member[8 + length :]
        with pytest.raises(DamagedFile, match="64"):
            load(repacked(path, tmp_path / "m.ingot", **{"native/weights.safetensors": shifted}))

    @pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what memory is whose")
    def test_they_are_mapped_and_not_read(self, tmp_path: Path) -> None:
        more = 64 << 20
        path = write_affine(tmp_path / "m.ingot", more=more, members={"program": bytes(more)})
        code = """
import resource, sys
import numpy as np, ingot_runtime
def private():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(l.split()[1]) for l in lines if l.startswith(("Private_Dirty", "Anonymous", "Swap:")))
before, peak = private(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = ingot_runtime.load(sys.argv[1])
model(np.ones((1, 4), np.float32))
print(private() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)
"""
        environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, check=True
        )
        grown, peak = (int(text) << 10 for text in done.stdout.split())
        assert grown < 8 << 20
        assert peak < more + more // 3  # of 128 MiB that were checked

    def test_the_view_that_the_library_reads_cannot_be_written(self, path: Path) -> None:
        with load(path) as model:
            assert isinstance(model, Model) and model._weights.view.readonly
            assert model._weights.size == weights().size


class TestCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    def test_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write(tmp_path / "m.ingot")
        (x, total), keyed = native_model.arguments()
        for name, value in (("x", x), ("total", total), ("rows", keyed["rows"]), ("twice", keyed["twice"][0])):
            np.save(tmp_path / f"{name}.npy", value)
        inputs = [f"--input={name}={tmp_path / name}.npy" for name in ("x", "total", "rows", "twice")]
        inputs += ["--input=scale=2", "--input=count=4", "--seed=3"]
        code, out, err = self.run(capsys, "run", path, *inputs, "--output", tmp_path / "out.npz")
        assert (code, err) == (0, "") and "y: float32[3, 4]" in out
        made = native_model.expected(x, keyed["rows"])
        with np.load(tmp_path / "out.npz") as found:
            np.testing.assert_array_equal(found["y"], made["y"])
            np.testing.assert_array_equal(found["mutated.total"], x.sum(0))
            np.testing.assert_array_equal(found["low"].view(np.uint32) >> 16, made["low"])
            assert found["ramp"].tolist() == [3, 4, 5, 6] and found["calls"] == 1
        code, out, err = self.run(capsys, "run", path, *inputs[1:], "--output", tmp_path / "no.npz")
        assert code == 1 and "missing x" in err and not (tmp_path / "no.npz").exists()
        code, out, err = self.run(capsys, "run", path, *inputs[:-2], "--input=count=x", "--output", tmp_path / "no.npz")
        assert code == 1 and not (tmp_path / "no.npz").exists()
        code, out, err = self.run(capsys, "run", path, *inputs, "--output", tmp_path / "none" / "no.npz")
        assert code == 1 and "none" in err

    def test_self_test_and_describe(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], path: Path) -> None:
        code, out, err = self.run(capsys, "self-test", write(tmp_path / "m.ingot"))
        assert (code, err) == (0, "") and "good on this machine" in out
        code, out, err = self.run(capsys, "self-test", path)
        assert code == 1 and "no sample" in err
        code, out, err = self.run(capsys, "describe", path)
        assert (code, err) == (0, "") and "x: float32[batch, 4]" in out
        code, out, err = self.run(capsys, "describe", tmp_path / "none.ingot")
        assert code == 1 and "none.ingot" in err

    def test_as_a_module(self, path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "ingot_runtime", "describe", str(path)],
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "") and "y: float32[batch, 4]" in done.stdout

    def test_extract_and_call_from_c(self, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = self.run(capsys, "extract", path, tmp_path / "model")
        assert (code, err) == (0, "") and ISA in out
        assert (tmp_path / "model" / "weights.bin").stat().st_size == weights().size
        source = ROOT / "examples" / "from_c" / "main.c"
        assert COMPILER is not None
        command = [
            COMPILER,
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{tmp_path / 'model'}",
            source,
            "-o",
            tmp_path / "main",
            "-ldl",
        ]
        subprocess.run(command, check=True)

        def call(*sizes: str) -> subprocess.CompletedProcess[str]:
            files = [tmp_path / "model" / "model.so", tmp_path / "model" / "weights.bin"]
            return subprocess.run([tmp_path / "main", *files, *sizes], capture_output=True, text=True)

        done = call("2", "4")
        found = [[float(number) for number in line.split()] for line in done.stdout.splitlines()]
        assert found == (np.arange(8, dtype=np.float32).reshape(2, 4) * W + B).tolist()
        refused = call("2", "5")
        assert refused.returncode == 1 and "5 columns" in refused.stderr
        code, out, err = self.run(capsys, "extract", path, tmp_path / "model", "--isa", "z80")
        assert code == 1 and "z80" in err and ISA in err

    def test_the_header_is_what_the_runtime_calls(self) -> None:
        text = HEADER.read_text()
        assert f"#define INGOT_ABI {ABI}" in text
        for name in native_library._FUNCTIONS:
            assert f"{name}(" in text
        assert ctypes.sizeof(native_library.NativeTensor) == 40 and ctypes.sizeof(native_library._Info) == 40
