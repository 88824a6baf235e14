"""Forged, damaged and hostile program files: each is a named error, nothing is written, nothing is loaded as code."""

from __future__ import annotations

import contextlib
import logging
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.errors import FileError, ForbiddenOperator, IngotError
from ingot.serialization import program_file
from ingot_runtime.container import canonical_json
from tests.runtime import hostile

GRAPH, WEIGHTS, EXAMPLE = program_file.GRAPH, program_file.WEIGHTS, program_file.EXAMPLE


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (self.first(x),)) * x.shape[0]


class Saved:
    """The parts of a good file."""

    def __init__(self, path: Path) -> None:
        with torch.no_grad():
            ingot.capture(Net().eval(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: "n"}}).save(path)
        self.data = path.read_bytes()
        with hostile.open_bytes(self.data) as container:
            self.members, self.fields = hostile.parts_of(container)

    def document(self) -> Any:
        return canonical_json.decode(self.members[GRAPH])

    def forged(self, **changes: bytes) -> bytes:
        names = {"graph": GRAPH, "weights": WEIGHTS, "example": EXAMPLE}
        return hostile.forge({**self.members, **{names[k]: v for k, v in changes.items()}}, self.fields)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("saved") / "p.ingot")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch logs a traceback for each node that cannot be run on fakes."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def read(data: bytes) -> ingot.Program:
    with hostile.open_bytes(data) as container:
        return program_file.read(container)


def refuse(data: bytes) -> FileError:
    with hostile.watch() as seen, pytest.raises(FileError) as caught:
        read(data)
    assert seen == []
    return caught.value


def node_of(document: Any, op: str = "call_function") -> Any:
    return next(node for node in document["graph"]["nodes"] if node["op"] == op)


def on_node(**changes: Any) -> Callable[[Any], None]:
    return lambda document: node_of(document).update(changes)


def on_tensor(**changes: Any) -> Callable[[Any], None]:
    return lambda document: node_of(document)["value"]["tensor"].update(changes)


def on_record(**changes: Any) -> Callable[[Any], None]:
    return lambda document: document["tensors"][0].update(changes)


def swap_nodes(document: Any) -> None:
    nodes = document["graph"]["nodes"]
    calls = [number for number, node in enumerate(nodes) if node["op"] == "call_function"]
    first, last = calls[0], calls[-1]
    nodes[first], nodes[last] = nodes[last], nodes[first]


def refer_to_itself(document: Any) -> None:
    node = node_of(document)
    node["args"] = [{"node": node["name"]}]


def refer_to_a_later_one(document: Any) -> None:
    calls = [node for node in document["graph"]["nodes"] if node["op"] == "call_function"]
    calls[0]["args"] = [{"node": calls[-1]["name"]}]


def repeat_a_graph(document: Any) -> None:
    document["graph"]["modules"] *= 2


def on_symbol(**changes: Any) -> Callable[[Any], None]:
    return lambda document: document["symbols"][0].update(changes)


def operator(name: str, *args: Any) -> Callable[[Any], None]:
    return lambda document: node_of(document).update(target={"operator": name}, args=list(args), kwargs=[])


EDITS: dict[str, Callable[[Any], None]] = {
    "an unknown operator": operator("aten::no_such_thing.default"),
    "from_file": operator("aten::from_file.default", "/tmp/victim", True, 4),
    "from_file with a token": operator("ingot_aten::from_file.default", "/tmp/victim", True, 4),
    "TorchScript's save": operator("aten::save.default", 1, "/tmp/victim"),
    "a storage by its address": operator("aten::set_.source_Storage_storage_offset", 140737488355328, 0, [4], [1]),
    "sparse indices that nobody checks": operator("aten::_sparse_coo_tensor_unsafe.default", 1, 2, [3]),
    "a method": on_node(op="call_method", target="system"),
    "a module": on_node(op="call_module", target="os"),
    "an attribute": on_node(op="get_attr", target="__class__"),
    "eval": on_node(target={"function": "eval"}),
    "a Python module's function": on_node(target={"function": "os.system"}),
    "a script object": on_node(args=[{"script_object": "x"}]),
    "a generator": on_node(args=[{"generator": 0}]),
    "an operator as an argument": on_node(args=[{"operator": "aten::add.Tensor"}]),
    "a cycle of one": refer_to_itself,
    "a cycle": refer_to_a_later_one,
    "nodes in another order": swap_nodes,
    "a graph twice": repeat_a_graph,
    "a negative dim": on_tensor(shape=[-1, 4]),
    "a giant dim": on_tensor(shape=[2**62, 2**62]),
    "a dim beyond 64 bits": on_tensor(shape=[2**64, 4]),
    "a negative stride": on_tensor(stride=[-1, 1]),
    "a giant stride": on_tensor(stride=[2**62, 2**62]),
    "a giant offset": on_tensor(offset=2**63 - 1),
    "a hundred dims": on_tensor(shape=[1] * 100, stride=[1] * 100),
    "another dtype than it gives": on_tensor(dtype="int64"),
    "an unknown dtype": on_tensor(dtype="object"),
    "another shape than it gives": on_tensor(shape=[5, 4]),
    "a symbol's bounds the wrong way round": on_symbol(low=9, high=3),
    "a symbol of 10**400": on_symbol(high=10**400),
    "a symbol's name is code": on_symbol(name="s0;import os"),
    "a tensor's offset beyond the data": on_record(offset=2**40),
    "a tensor's offset below zero": on_record(offset=-1),
    "a tensor's shape beyond the data": on_record(shape=[2**31, 2**31]),
    "a tensor's shape below zero": on_record(shape=[-4, 4]),
    "a tensor's stride beyond the data": on_record(stride=[2**40, 1]),
    "a state of a tensor that is not there": lambda document: document["state_dict"][0].__setitem__(1, 99),
    "an example of a tensor that is not there": lambda document: document["example"].update(arguments=[99]),
    "another schema": lambda document: document.update(program_schema=99),
    "a schema that is text": lambda document: document.update(program_schema="1"),
}

HEADERS = {
    "longer than the file": struct.pack("<Q", 2**40) + b"{}",
    "2**64 - 1": b"\xff" * 8 + b"{}",
    "not JSON": struct.pack("<Q", 1) + b"{",
    "nested": struct.pack("<Q", 100_000) + hostile.nest(50_000),
    "nan": struct.pack("<Q", 57) + b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,64]}}',
    "nothing": b"",
    "four bytes": b"\0\0\0\0",
}


def test_the_file_is_good(saved: Saved) -> None:
    x = torch.ones(3, 4)
    assert read(saved.data)(x).shape == (3, 4)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_with_its_hashes_in_order(name: str, saved: Saved) -> None:
    document = saved.document()
    EDITS[name](document)
    assert canonical_json.encode(document) != saved.members[GRAPH]
    error = refuse(saved.forged(graph=canonical_json.encode(document)))
    if "from_file" in name:
        assert isinstance(error, ForbiddenOperator)


@pytest.mark.parametrize("member", ["weights", "example"])
@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_tensors(name: str, member: str, saved: Saved) -> None:
    refuse(saved.forged(**{member: HEADERS[name]}))


@pytest.mark.parametrize(
    "graph",
    [b"", b"{", b"[]", b"\xff", b"NaN", hostile.nest(200_000), b'{"graph":1e999}', b'{"a":1,"a":2}', b"9" * 5000],
    ids=lambda data: repr(data[:20]),
)
def test_graphs(graph: bytes, saved: Saved) -> None:
    refuse(saved.forged(graph=graph))


@pytest.mark.parametrize("member", [GRAPH, WEIGHTS, EXAMPLE])
def test_members_cut_or_gone(member: str, saved: Saved) -> None:
    data = saved.members[member]
    for part in (data[:-1], data[: len(data) // 2], b""):
        refuse(hostile.forge({**saved.members, member: part}, saved.fields))
    refuse(hostile.forge({name: data for name, data in saved.members.items() if name != member}, saved.fields))


def test_members_swapped(saved: Saved) -> None:
    for a, b in ((GRAPH, WEIGHTS), (GRAPH, EXAMPLE)):
        refuse(hostile.forge({**saved.members, a: saved.members[b], b: saved.members[a]}, saved.fields))


class TestRandom:
    def test_bytes_of_the_graph_with_their_hashes_in_order(self, saved: Saved) -> None:
        """A program that is as good as the one that was saved, or a named error."""
        chosen = random.Random(21)
        original = saved.members[GRAPH]
        refused = 0
        with hostile.watch() as seen:
            for _ in range(400):
                data = bytearray(original)
                for _ in range(chosen.randint(1, 3)):
                    at = chosen.randrange(len(data))
                    data[at] = chosen.choice((chosen.randrange(256), *b'0123456789"[]{},:-'))
                try:
                    read(saved.forged(graph=bytes(data)))
                except IngotError:
                    refused += 1
        assert seen == [] and refused > 200

    def test_bytes_of_tensors_with_their_hashes_in_order(self, saved: Saved) -> None:
        chosen = random.Random(22)
        with hostile.watch() as seen:
            for _ in range(150):
                name = chosen.choice((WEIGHTS, EXAMPLE))
                data = bytearray(saved.members[name])
                for _ in range(chosen.randint(1, 4)):
                    data[chosen.randrange(min(len(data), 256))] = chosen.randrange(256)
                with contextlib.suppress(IngotError):
                    read(hostile.forge({**saved.members, name: bytes(data)}, saved.fields))
        assert seen == []
