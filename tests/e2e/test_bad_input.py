"""What native code cannot take: each a named error that says what to do; nothing half-written, never a wrong number."""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
import ingot_runtime
from ingot.artifacts.compiled_model import CompiledModel
from ingot.errors import (
    CacheError,
    CaptureError,
    CompileError,
    CompilerFailed,
    InputError,
    LiteralError,
    NoCompiler,
    StorageError,
    StructureError,
    UnsupportedMachine,
    UnsupportedOperator,
)
from ingot_runtime import write_container
from ingot_runtime.container import schema
from ingot_runtime.container.manifest import ABI

HERE = Path(__file__).name


def line_of(function: Callable[..., Any], text: str) -> str:
    """Where a line of a function of this file is, as messages write it."""
    lines, first = inspect.getsourcelines(function)
    return f"{HERE}:{first + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.fixture(scope="module")
def scaled() -> Iterator[CompiledModel]:
    """x * 2 for float32[batch, 4], batch up to 8."""
    batch = torch.export.Dim("batch", max=8)
    compiled = ingot.compile(lambda x: x * 2, (torch.ones(3, 4),), dynamic_shapes={"x": {0: batch}})
    yield compiled
    compiled.close()


@pytest.fixture(scope="module")
def saved(scaled: CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "m.ingot"
    scaled.save(file)
    return file


# ---------------------------------------------------------------------- operators, dtypes, devices


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x).abs()  # the first


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: torch.Tensor) -> Any:
        values = [block(x + number) for number, block in enumerate(self.blocks)]
        return values, torch.fft.rfft(x).abs()  # the second


def test_every_operator_without_a_rule_at_once_with_module_and_line() -> None:
    with pytest.raises(UnsupportedOperator) as caught:
        ingot.compile(Outer(), (torch.eye(3),))
    said = str(caught.value)
    assert "operators cannot be compiled" in said
    assert "linalg_eig" in said and "in blocks.0" in said and line_of(Inner.forward, "the first") in said
    assert "and 1 more" in said
    assert "_fft_r2c" in said and line_of(Outer.forward, "the second") in said
    assert "what to do" in said


@pytest.mark.parametrize(
    ("function", "argument", "texts"),
    [
        (lambda x: x * 2, torch.ones(3, dtype=torch.complex64), ["complex64", "aten.mul.Tensor", HERE]),
        (lambda x: torch.fft.rfft(x), torch.ones(4), ["_fft_r2c", HERE]),
        (lambda x: x.float(), torch.ones(3).to(torch.float8_e4m3fn), ["float8_e4m3fn", "x"]),
        (lambda x: x.to(torch.float8_e4m3fn).float(), torch.ones(3), ["float8_e4m3fn", HERE]),
        (lambda x: x * 2, torch.eye(3).to_sparse(), ["sparse"]),
        (lambda x: x * 2, torch.ones(3, device="meta"), ["meta", HERE]),
    ],
    ids=["complex", "complex result", "float8", "float8 inside", "sparse", "meta"],
)
def test_dtypes_layouts_and_devices(function: Any, argument: torch.Tensor, texts: list[str]) -> None:
    with pytest.raises((UnsupportedOperator, CaptureError)) as caught:
        ingot.compile(function, (argument,))
    for text in texts:
        assert text in str(caught.value)


def test_weights_that_native_code_cannot_hold() -> None:
    with pytest.raises(CompileError, match="meta"):
        ingot.compile(nn.Linear(4, 2, device="meta"), (torch.ones(2, 4, device="meta"),))
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    model.forward = lambda x: (x + 1, model.weight)
    with pytest.raises(UnsupportedOperator, match="complex64"):
        ingot.compile(model, (torch.ones(3),))


def test_other_arguments_of_compile() -> None:
    x = torch.ones(3)
    with pytest.raises(UnsupportedMachine, match="x86-64-v3"):
        ingot.compile(nn.ReLU(), (x,), isa="z80")
    with pytest.raises(CaptureError, match="int"):
        ingot.compile(3, (x,))
    for threads in (0, -1, 100_000, "2", 1.0, True):
        with pytest.raises(ValueError, match="threads"):
            ingot.compile(nn.ReLU(), (x,), threads=threads)


# ---------------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("x", "error", "texts"),
    [
        (torch.ones(3, 4).double(), InputError, ["x", "float64", "float32"]),
        (torch.ones(3, 4).long(), InputError, ["int64"]),
        (torch.ones(3, 4, 1), InputError, ["3 dims"]),
        (torch.ones(4), InputError, ["1 dims"]),
        (torch.ones(3, 5), InputError, ["dim 1 of x is 5"]),
        (torch.ones(9, 4), InputError, ["batch", "8"]),
        (torch.ones(3, 4, device="meta"), InputError, ["x"]),
        (torch.eye(3, 4).to_sparse(), InputError, ["x"]),
        (torch.ones(3, 4, dtype=torch.complex64).conj(), InputError, ["x"]),
        (None, InputError, ["None"]),
        (3, InputError, ["3"]),
        ([[1.0] * 4], StructureError, ["list"]),
    ],
    ids=str,
)
def test_calls_with_something_else(scaled: CompiledModel, saved: Path, x: Any, error: Any, texts: list[str]) -> None:
    for model in (scaled, ingot.load(saved)):
        with pytest.raises((error, InputError)) as caught:
            model(x)
        if model is scaled:
            for text in texts:
                assert text in str(caught.value)


def test_fake_tensors_are_refused(scaled: CompiledModel) -> None:
    with torch._subclasses.fake_tensor.FakeTensorMode():
        fake = torch.ones(3, 4)
    with pytest.raises(InputError, match="FakeTensor"):
        scaled(fake)


def test_other_arguments(scaled: CompiledModel) -> None:
    x = torch.ones(3, 4)
    for args, kwargs in (((), {}), ((x, x), {}), ((x,), {"y": x}), ((), {"y": x}), ((x,), {"x": x})):
        with pytest.raises(StructureError):
            scaled(*args, **kwargs)
    compiled = ingot.compile(lambda x, flag: x + 1 if flag else x, (x, True))
    with pytest.raises(LiteralError, match="False"):
        compiled(x, False)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 3).t(),
        torch.randn(3, 8)[:, ::2],
        torch.randn(1, 4).expand(3, 4),
        torch.randn(3, 4).flip(0),
        torch.randn(13)[1:].view(3, 4),
        torch.randn(3, 4, requires_grad=True),
        nn.Parameter(torch.randn(3, 4)),
    ],
    ids=["transposed", "strided", "expanded", "flipped", "offset", "requires grad", "parameter"],
)
def test_any_strides_are_taken(scaled: CompiledModel, x: torch.Tensor) -> None:
    assert torch.equal(scaled(x), x.detach() * 2)


def test_negative_strides_of_numpy(scaled: CompiledModel) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(scaled(x[::-1, ::-1]), x[::-1, ::-1] * 2)
    with pytest.raises(InputError, match="byte order"):
        scaled(x.astype(">f4"))


@pytest.mark.parametrize(
    ("buffer", "text"),
    [
        (np.empty((2, 4), np.float32), "too small"),
        (np.empty((3, 3), np.float32), "too small"),
        (np.empty((4, 4), np.float32), "(3, 4)"),
        (np.empty((3, 4)), "float64"),
        (np.empty((12,), np.float32), "1 dims"),
        (np.empty((3, 8), np.float32)[:, ::2], "contiguous"),
        (np.frombuffer(bytes(48), np.float32).reshape(3, 4), "read-only"),
        (bytearray(48), "uint8"),
    ],
)
def test_output_buffers(saved: Path, buffer: Any, text: str) -> None:
    x = np.ones((3, 4), np.float32)
    before = bytes(memoryview(np.ascontiguousarray(buffer)))
    with ingot_runtime.load(saved) as model:
        with pytest.raises(ingot_runtime.OutputError) as caught:
            model(x, out=buffer)
        assert text in str(caught.value)
        assert bytes(memoryview(np.ascontiguousarray(buffer))) == before
        good = np.empty((3, 4), np.float32)
        assert model(x, out=good) is good and (good == 2).all()
        with pytest.raises(ingot_runtime.OutputError, match="share memory"):
            model(good, out=good)


def test_what_a_run_finds_out(scaled: CompiledModel) -> None:
    embedding = ingot.compile(nn.Embedding(5, 2), (torch.tensor([1]),))
    for index in (5, -1, 2**40):
        with pytest.raises(IndexError, match="out of range") as caught:
            embedding(torch.tensor([index]))
        assert isinstance(caught.value, ingot.IngotError)
    divided = ingot.compile(lambda a, b: a // b, (torch.tensor([1]), torch.tensor([1])))
    with pytest.raises(ZeroDivisionError) as division:
        divided(torch.tensor([7]), torch.tensor([0]))
    assert isinstance(division.value, ingot.IngotError)
    assert divided(torch.tensor([7]), torch.tensor([2])).tolist() == [3]


@pytest.mark.parametrize(
    ("function", "wraps"),
    [
        (lambda x, i: x.gather(0, i), False),
        (lambda x, i: x.index_select(0, i), False),
        (lambda x, i: x.scatter(0, i, 1.0), False),
        (lambda x, i: x.scatter_add(0, i, x[:1]), False),
        (lambda x, i: x.index_add(0, i, x[:1]), False),
        (lambda x, i: x.index_copy(0, i, x[:1]), False),
        (lambda x, i: x[i], True),
        (lambda x, i: x.index_fill(0, i, 1.0), True),
        (lambda x, i: x.index_put((i,), x[:1]), True),
        (lambda x, i: torch.take(x, i), True),
        (lambda x, i: x.put(i, x[:1]), True),
    ],
    ids=[
        "gather",
        "index_select",
        "scatter",
        "scatter_add",
        "index_add",
        "index_copy",
        "[]",
        "index_fill",
        "index_put",
        "take",
        "put",
    ],
)
def test_negative_indices_are_what_they_are_in_torch(function: Any, wraps: bool) -> None:
    x = torch.randn(4)
    compiled = ingot.compile(function, (x, torch.tensor([1])))
    assert torch.equal(compiled(x, torch.tensor([3])), function(x, torch.tensor([3])))
    if wraps:
        assert torch.equal(compiled(x, torch.tensor([-1])), function(x, torch.tensor([-1])))
    for index in (4, -5, *(() if wraps else (-1,))):
        with pytest.raises(ingot_runtime.IndexOutOfRange):
            compiled(x, torch.tensor([index]))


# ---------------------------------------------------------------------- disks and compilers


def test_a_full_disk_when_saving(scaled: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.ingot"
    scaled.save(file)
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for target in (file, tmp_path / "other.ingot"):
            with pytest.raises(StorageError) as caught:
                scaled.save(target)
            assert "the disk is full" in str(caught.value) and str(target) in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.ingot"] and file.read_bytes() == before
    for target, why in ((tmp_path / "missing" / "m.ingot", "does not exist"), (file / "m.ingot", "is a file")):
        with pytest.raises(StorageError, match=why):
            scaled.save(target)
    with pytest.raises(StorageError):
        scaled.save(tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder lies below a file, which no user may write to, root included."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    x = torch.randn(3)
    assert torch.equal(ingot.compile(lambda x: x * 3, (x,))(x), x * 3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_no_folder_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ingot.codegen.build import cache

    def nowhere(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/tmp")

    (tmp_path / "file").touch()
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(cache.tempfile, "mkdtemp", nowhere)
    cache._private_of.cache_clear()
    with pytest.raises(CacheError, match="INGOT_CACHE_DIR"):
        ingot.compile(lambda x: x * 5, (torch.ones(3),))


def compiler(path: Path, body: str) -> Path:
    """A compiler that knows who it is, and then does what a test wants."""
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '  *--version*) echo "cc 1.0"; exit 0;;\n'
        f"  *-dumpmachine*) echo {platform.machine()}-linux-gnu; exit 0;;\n"
        f"esac\n{body}\n"
    )
    path.chmod(0o755)
    return path


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = compiler(tmp_path / "cc", "echo 'model.c:7: error: I do not like this line' >&2; exit 1")
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(CompilerFailed) as caught:
        ingot.compile(lambda x: x * 7, (torch.ones(3),))
    error = caught.value
    assert "I do not like this line" in str(error) and "I do not like this line" in error.output
    assert error.kept is not None and str(error.kept) in str(error)
    kept = [error.kept] if error.kept.is_file() else list(error.kept.iterdir())
    assert any("ingot_run" in file.read_text() for file in kept)
    assert not list((tmp_path / "cache").glob("libraries/*/*"))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("exit 0", "no library"),
        ("kill -9 $$", "SIGKILL"),
        ("for last; do :; done; echo text > model.so", "not a shared"),
    ],
)
def test_compilers_that_end_in_other_ways(
    body: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(compiler(tmp_path / "cc", body)))
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(CompilerFailed, match=text):
        ingot.compile(lambda x: x * 11, (torch.ones(3),))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(NoCompiler, match="what to do"):
        ingot.compile(nn.ReLU(), (torch.ones(3),))


# ---------------------------------------------------------------------- files

LOADERS = [ingot.load, ingot_runtime.load]


@pytest.mark.parametrize("load", LOADERS)
def test_a_damaged_file(load: Callable[..., Any], saved: Path, tmp_path: Path) -> None:
    """Bytes all over the file; tests/runtime goes through every byte of a small one."""
    data = saved.read_bytes()
    file = tmp_path / "m.ingot"
    for place in {*range(0, len(data), 997), *range(64), *range(len(data) - 64, len(data))}:
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(ingot_runtime.FileError):
            load(file)
    for size in (0, 1, 100, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(ingot_runtime.FileError):
            load(file)
    file.write_bytes(data + b"more")
    with pytest.raises(ingot_runtime.FileError):
        load(file)
    file.write_bytes(data)
    load(file).close()


def rewritten(saved: Path, file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The saved file with another manifest, and every hash right."""
    with ingot_runtime.open_container(saved) as container:
        manifest = {k: v for k, v in container.manifest.items() if k not in ("format", "schema", "members")}
        members = {name: bytes(container.read(name)) for name in container.names}
    change(manifest)
    write_container(file, members, manifest)


@pytest.mark.parametrize("load", LOADERS)
def test_files_of_other_releases(
    load: Callable[..., Any], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.ingot"
    for abi, text in ((ABI + 1, "newer"), (ABI - 1, "older")):
        rewritten(saved, file, lambda manifest, abi=abi: manifest["native"].update(abi=abi))
        with pytest.raises(ingot_runtime.UnsupportedSchema, match=text):
            load(file)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCHEMA", max(schema.READABLE) + 1)
        rewritten_by_the_next = contextlib.suppress(ingot_runtime.UnsupportedSchema)
        with rewritten_by_the_next:
            write_container(file, {}, {"native": {}})
    with pytest.raises(ingot_runtime.UnsupportedSchema, match="newer"):
        load(file)


@pytest.mark.parametrize("load", LOADERS)
def test_other_files(load: Callable[..., Any], saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.ingot"
    for content in (b"", b"text", b"PK\x03\x04" + bytes(100)):
        file.write_bytes(content)
        with pytest.raises(ingot_runtime.FileError):
            load(file)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.ingot")

    def for_another_machine(manifest: dict[str, Any]) -> None:
        for library in manifest["native"]["libraries"]:
            library["isa"] = "aarch64" if platform.machine() == "x86_64" else "x86-64"

    rewritten(saved, file, for_another_machine)
    with pytest.raises(ingot_runtime.MissingInstructionSet, match="--isa"):
        load(file)


def test_a_program_is_not_compiled(tmp_path: Path) -> None:
    ingot.capture(nn.ReLU(), (torch.ones(3),)).save(tmp_path / "p.ingot")
    with pytest.raises(ingot_runtime.NotCompiled, match="compile"):
        ingot_runtime.load(tmp_path / "p.ingot")


def test_sizes_for_which_an_output_would_be_negative() -> None:
    """Chunks of 2 numbers are two, not four: the last one's size says so before anything is allocated."""
    program = ingot.capture(lambda a: a.chunk(4, 1)[-1] * 1, (torch.ones(3, 8),), dynamic_shapes=({1: "n"},))
    native = ingot.compile(program)
    with pytest.raises(InputError, match="condition of the program: dim 1 of output 0 would be -1"):
        native(torch.ones(3, 2))
    assert native(torch.ones(3, 12)).shape == (3, 3)
