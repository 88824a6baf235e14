"""Packing a compiled model: the layout of its weights, the call of its program, and what is refused."""

from __future__ import annotations

import hashlib
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ingot
import ingot_runtime
from ingot.artifacts.packaging import call_of, pack_weights, write_native
from ingot.errors import SaveError
from ingot_runtime import BFloat16Array, LiteralError, StructureError, as_numpy, parse_header, pytree
from ingot_runtime.container.safetensors_member import data_begin

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Options:
    scale: torch.Tensor
    shift: torch.Tensor


class Nested(nn.Module):
    def forward(
        self, x: torch.Tensor, pair: Any, *, options: Options, dtype: torch.dtype, bias: Any = None, eps: float = 0.5
    ) -> Any:
        y = x * options.scale + options.shift + pair[0] + eps
        return {"y": y.to(dtype), "more": [Pair(y + 1, pair[1] * 2), bias], "word": "done"}


class TestWeights:
    @given(st.lists(st.integers(0, 300), max_size=8))
    def test_every_weight_lies_on_a_multiple_of_64(self, sizes: list[int]) -> None:
        arrays = {f"w{n}": np.full(size, n + 1, np.uint8) for n, size in enumerate(sizes)}
        packed = pack_weights(arrays)
        assert list(packed.offsets) == list(arrays)  # in their order
        assert all(offset % 64 == 0 for offset in packed.offsets.values())
        member = memoryview(b"".join(packed.member.chunks()))
        assert len(member) == packed.member.size
        begin = data_begin(member)
        assert begin % 64 == 0
        blob = bytes(member[begin:])
        assert (len(blob), hashlib.sha256(blob).hexdigest()) == (packed.size, packed.sha256)
        for name, array in arrays.items():
            assert blob[packed.offsets[name] :][: array.size] == array.tobytes()
        entries = parse_header(member)
        pads = [entry for name, entry in entries.items() if name.startswith("pad.")]
        assert sum(entry.end - entry.begin for entry in pads) + sum(sizes) == packed.size
        assert not any(as_numpy(member, entry).any() for entry in pads)

    def test_what_weights_may_be(self) -> None:
        made = {
            "numpy": np.arange(6, dtype=np.int16).reshape(2, 3).T,
            "scalar": np.float64(1.5),
            "bytes": b"abc",
            "bfloat16": BFloat16Array.of([1.0, 2.0]),
            "torch": torch.arange(4.0).reshape(2, 2).T,
            "torch bfloat16": torch.tensor(3.0, dtype=torch.bfloat16),
            "torch bool": torch.tensor([True, False]),
            "parameter": nn.Parameter(torch.ones(2)),
            "raw": ("F8_E4M3", (2,), b"xy"),
            "later": ("F32", (2,), lambda: np.ones(2, np.float32)),
        }
        member = memoryview(b"".join(pack_weights(made).member.chunks()))
        found = {n: (e.dtype, e.shape, as_numpy(member, e)) for n, e in parse_header(member).items()}
        shapes = {name: found[name][:2] for name in made}
        assert shapes == {
            "numpy": ("I16", (3, 2)), "scalar": ("F64", ()), "bytes": ("U8", (3,)), "bfloat16": ("BF16", (2,)),
            "torch": ("F32", (2, 2)), "torch bfloat16": ("BF16", ()), "torch bool": ("BOOL", (2,)),
            "parameter": ("F32", (2,)), "raw": ("F8_E4M3", (2,)), "later": ("F32", (2,)),
        }  # fmt: skip
        assert found["numpy"][2].tolist() == [[0, 3], [1, 4], [2, 5]]
        assert found["torch"][2].tolist() == [[0, 2], [1, 3]]
        assert found["torch bfloat16"][2] == 0x4040 and found["torch bool"][2].tolist() == [True, False]

    @pytest.mark.parametrize(
        "value", [np.zeros(2, np.complex64), np.array(["a"]), torch.zeros(2, dtype=torch.complex64), object(), [None]]
    )
    def test_what_they_may_not_be(self, value: Any) -> None:
        with pytest.raises(ValueError, match="weight is"):
            pack_weights({"weight": value})

    def test_a_name_that_a_gap_has(self) -> None:
        with pytest.raises(ValueError, match=r"pad\.1"):
            pack_weights({"a": b"a", "b": b"b", "pad.1": b"c"})


class TestCall:
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        options = Options(torch.tensor(2.0), torch.tensor([1.0, 2.0]))
        pair = [torch.ones(2), torch.zeros(1)]
        return (torch.ones(3, 2), pair), {"options": options, "dtype": torch.float64, "bias": None}

    def test_a_call_comes_back_as_it_was(self) -> None:
        args, kwargs = self.arguments()
        program = ingot.capture(Nested(), args, kwargs)
        call = call_of(program)
        arguments = pytree.read(call["in"], {"input": 5})
        result = pytree.read(call["out"], {"output": 3})
        assert isinstance(arguments, pytree.Branch)
        assert call["parameters"] == ["x", "pair"] or call["parameters"][:2] == ["x", "pair"]

        def flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
            leaves: list[Any] = [None] * 5
            pytree.flatten(arguments, pytree.arrange(arguments, call["parameters"], args, kwargs), "", leaves)
            return leaves

        leaves = flat(args, kwargs)
        expected = [args[0], *args[1], kwargs["options"].scale, kwargs["options"].shift]
        assert all(mine is theirs for mine, theirs in zip(leaves, expected, strict=True))
        as_dict = {"scale": leaves[3], "shift": leaves[4]}
        assert (
            flat((), {"x": args[0], "pair": tuple(args[1]), **kwargs, "options": as_dict, "dtype": "float64"}) == leaves
        )
        with pytest.raises(LiteralError, match=r"dtype.*float64"):
            flat(args, {**kwargs, "dtype": torch.float32})
        with pytest.raises(LiteralError, match="bias"):
            flat(args, {**kwargs, "bias": 0})
        with pytest.raises(StructureError, match="options"):
            flat(args, {**kwargs, "options": 3})
        with pytest.raises(StructureError, match="unexpected eps"):
            flat(args, {**kwargs, "eps": 0.5})

        made = pytree.unflatten(result, {"output": ["y", "first", "second"]})
        pair, bias = made["more"]
        assert (made["y"], made["word"], pair, pair.second, bias) == ("y", "done", ("first", "second"), "second", None)

    @pytest.mark.parametrize(
        "literal",
        [
            None, True, 3, 2.5, -0.0, float("inf"), float("nan"), "text", b"bytes", 1 + 2j, (1, (2, 3)), [1, None],
            {"a": 1}, slice(1, None, 2), ..., torch.float32, torch.device("cpu"), torch.strided, torch.channels_last,
        ],
    )  # fmt: skip
    def test_literals(self, literal: Any) -> None:
        from ingot.serialization.values import write_plain

        tree = pytree.read({"literal": write_plain(literal)}, {})
        pytree.flatten(tree, literal, "place", [])
        for other in ("another", 7, 0.0, None, False, (1, (2, 4)), torch.float64):
            if other is not literal:
                with pytest.raises(LiteralError, match="place"):
                    pytree.flatten(tree, other, "place", [])


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"libraries": {"x86-64-v9": b""}}, "x86-64-v9"),
            ({"manifest_native": {}}, "symbols"),
            ({"weights": {"w": np.zeros(2, np.complex64)}}, "complex64"),
        ],
    )
    def test_nothing_is_written(self, tmp_path: Path, change: dict[str, Any], word: str) -> None:
        empty = {"kind": "tuple", "name": "tuple", "keys": [], "children": []}
        both = {**empty, "keys": [0, 1], "children": [empty, {**empty, "kind": "dict"}]}
        native = {"inputs": [], "outputs": [], "symbols": {}, "call": {"in": both, "out": {"literal": None}}}
        good: dict[str, Any] = {"manifest_native": native, "libraries": {}, "source": "", "weights": {}}
        write_native(tmp_path / "good.ingot", **good)
        with pytest.raises(ValueError, match=word):
            write_native(tmp_path / "bad.ingot", **{**good, **change})
        assert [path.name for path in tmp_path.iterdir()] == ["good.ingot"]

    def test_a_program_that_a_file_cannot_call(self) -> None:
        class Fixed(nn.Module):
            def forward(self, x: torch.Tensor, word: Any) -> Any:
                return x + 1

        program = ingot.capture(Fixed(), (torch.ones(2), "text"))
        assert call_of(program)["in"]["children"][0]["children"][1] == {"literal": "text"}
        literal = program.signature.inputs[-1]
        object.__setattr__(literal, "value", object())
        with pytest.raises(SaveError, match="object"):
            call_of(program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_examples_of_any_strides_are_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    """One element is contiguous to torch, whatever its stride is."""
    whole = torch.arange(64).reshape(8, 8).to(dtype)
    for name, x in {
        "one element": whole[0, ::2][:1],
        "one element, from the middle": whole[3, 1::3][1:2],
        "one row": whole[::2, ::2][:1],
        "expanded": whole[1, 2].expand(2, 3),
        "no dims": whole[1, 2],
        "transposed": whole.t()[1:3],
    }.items():
        compiled = ingot.compile(nn.Identity(), (x,), cache=False)
        compiled.save(tmp_path / f"{name}.ingot")
        compiled.close()
        with ingot_runtime.load(tmp_path / f"{name}.ingot") as loaded:
            assert loaded._sample is not None, name
            loaded.self_test()
