"""A file that is damaged, or holds a bad program, is a named error, and loading it imports nothing."""

from __future__ import annotations

import json
import math
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import (
    DamagedFile,
    FileError,
    IngotError,
    MissingOperator,
    NotAnIngotFile,
    UnsupportedSchema,
)
from ingot.ir.pytree import ResultRecord
from ingot.serialization import program_file
from ingot.serialization.program_file import load, save
from ingot_runtime import MissingMember, open_container, write_container
from ingot_runtime.container import canonical_json
from tests.serialization.test_program_file import Answer, _x


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small program with a bit of everything: dims, a branch, a number known only at run time, nested arguments."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor, o: dict[str, Any]) -> Any:
            self.seen += 1
            h = torch.cond(x.sum() > 0, lambda x: self.fc(x), lambda x: x - 1.5, (x,))
            return Answer(h, (h.flatten().nonzero(), x.new_ones(x.shape[0] * 2 + 1)))

    program = ingot.capture(Model(), (_x(3, 2), {"k": [math.nan, torch.float16]}), dynamic_shapes={"x": {0: "n"}})
    path = tmp_path_factory.mktemp("good") / "m.ingot"
    save(program, path)
    return path


def rewrite(path: Path, to: Path, **changes: Any) -> Path:
    """A valid container with other members; a change is new bytes, or None to leave the member out."""
    with open_container(path) as container:
        members = {name: bytes(container.read(name)) for name in container.names}
    members |= {name.replace("_", "."): data for name, data in changes.items()}
    write_container(to, {name: data for name, data in members.items() if data is not None}, {})
    return to


def document(path: Path) -> Any:
    with open_container(path) as container:
        return json.loads(bytes(container.read("graph.json")))


def test_damage_is_named(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    generator = random.Random(0)
    target = tmp_path / "m.ingot"
    for size in [0, 1, 63, *generator.sample(range(len(data)), 20), len(data) - 1]:
        target.write_bytes(data[:size])
        with pytest.raises((DamagedFile, NotAnIngotFile)):
            load(target)
    for at in generator.sample(range(len(data)), 40):
        flipped = bytearray(data)
        flipped[at] ^= 1 << generator.randrange(8)
        target.write_bytes(flipped)
        with pytest.raises(FileError):
            load(target)


def test_missing_renamed_and_lying_members(good: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.ingot"
    for member in ("graph_json", "weights_safetensors", "example_safetensors"):
        with pytest.raises(MissingMember, match=member.replace("_", ".")):
            load(rewrite(good, target, **{member: None}))
    with pytest.raises(MissingMember):
        load(rewrite(good, target, graph_json=None, grapf_json=b"{}"))
    with open_container(good) as container:
        weights = bytes(container.read("weights.safetensors"))
    for lie in (weights[:-1], weights.replace(b"[2,2]", b"[2,9]"), b"\xff" * 8 + weights[8:], b""):
        with pytest.raises(DamagedFile, match="weights"):
            load(rewrite(good, target, weights_safetensors=lie))
    for text in (b"", b"{", b"[]", b"NaN", b'{"a":1,"a":2}', b"\xff", b"[" * 100_000):
        with pytest.raises(DamagedFile, match="graph"):
            load(rewrite(good, target, graph_json=text))


def test_other_schemas(good: Path, tmp_path: Path) -> None:
    for schema, word in ((0, None), (2, "newer"), ("1", None), (True, None)):
        changed = document(good) | {"program_schema": schema}
        with pytest.raises(UnsupportedSchema if word else DamagedFile, match=word or "schema"):
            load(rewrite(good, tmp_path / "m.ingot", graph_json=canonical_json.encode(changed)))


def _node(document: Any, name: str) -> Any:
    return next(node for node in document["graph"]["nodes"] if node["name"] == name)


def _call(document: Any) -> Any:
    return next(node for node in document["graph"]["nodes"] if node["op"] == "call_function")


def _set(**fields: Any) -> Callable[[Any], None]:
    return lambda document: _call(document).update(fields)


def _swap_nodes(document: Any) -> None:
    nodes = document["graph"]["nodes"]
    nodes[-2], nodes[-3] = nodes[-3], nodes[-2]
    nodes.insert(0, nodes.pop(nodes.index(_node(document, "gt"))))


MALICE: dict[str, tuple[Callable[[Any], None], type[FileError]]] = {
    "missing op": (_set(target={"operator": "nowhere::nothing.default"}), MissingOperator),
    "missing overload": (_set(target={"operator": "aten::add.Nothing"}), MissingOperator),
    "missing higher order op": (_set(target={"higher_order": "nothing"}), MissingOperator),
    "a function of torch.ops": (_set(target={"operator": "load_library::x.y"}), MissingOperator),
    "an attribute of a namespace": (_set(target={"operator": "aten::__class__.mro"}), MissingOperator),
    "an attribute of an operator": (_set(target={"operator": "aten::add.overloads"}), MissingOperator),
    "load_library": (_set(target={"operator": "load_library"}), DamagedFile),
    "a function outside the table": (_set(target={"function": "os.system"}), DamagedFile),
    "eval": (_set(target={"function": "eval"}), DamagedFile),
    "code as a node's name": (_set(name="x; import os"), DamagedFile),
    "code as a keyword": (_set(kwargs=[["a=1), print(1", None]]), DamagedFile),
    "a keyword of Python": (_set(name="import"), DamagedFile),
    "a method": (_set(op="call_method"), DamagedFile),
    "a module": (_set(op="call_module", target="fc"), DamagedFile),
    "an attribute": (_set(op="get_attr", target="__class__", args=[], kwargs=[]), DamagedFile),
    "code as a placeholder": (lambda d: d["graph"]["nodes"][0].update(target="x, y=print(1)"), DamagedFile),
    "a graph that hides a method": (lambda d: d["graph"]["modules"][0].__setitem__(0, "forward"), DamagedFile),
    "two nodes of one name": (_set(name="x"), DamagedFile),
    "a node before its argument": (_swap_nodes, DamagedFile),
    "itself": (lambda d: _call(d).update(args=[{"node": _call(d)["name"]}]), DamagedFile),
    "no output": (lambda d: d["graph"]["nodes"].pop(), DamagedFile),
    "two outputs": (lambda d: d["graph"]["nodes"].append({**d["graph"]["nodes"][-1], "name": "o2"}), DamagedFile),
    "a newline in a comment": (lambda d: d["sources"][0].__setitem__(0, "a\nimport os"), DamagedFile),
    "a huge power": (
        lambda d: d["constraints"].append({"condition": ["pow", 9, ["mul", 9, 10**9]], "source": ""}),
        DamagedFile,
    ),
    "division by zero": (
        lambda d: d["constraints"].append({"condition": ["floordiv", "s_n", 0], "source": ""}),
        DamagedFile,
    ),
    "a symbol of no dim": (lambda d: d["symbols"][0].update(name="s_m"), DamagedFile),
    "a symbol that is code": (lambda d: d["symbols"][0].update(name="s_n+print(1)"), DamagedFile),
    "a hint outside the range": (lambda d: d["symbols"][0].update(hint=0), DamagedFile),
    "a tensor beyond its data": (lambda d: d["tensors"][0].update(offset=1), DamagedFile),
    "a tensor of negative size": (lambda d: d["tensors"][0].update(shape=[-1, -4]), DamagedFile),
    "a tensor of endless size": (lambda d: d["tensors"][0].update(shape=[2**62, 2**62]), DamagedFile),
    "a tensor without data": (lambda d: d["tensors"][0].update(data="nothing"), DamagedFile),
    "a state without a tensor": (lambda d: d["state_dict"][0].__setitem__(1, 99), DamagedFile),
    "a signature for another graph": (lambda d: d["signature"]["inputs"].pop(0), DamagedFile),
    "a result without a place": (lambda d: d["signature"].update(out_tree=None), DamagedFile),
    "an unknown field": (lambda d: d.update(extra=1), DamagedFile),
    "deep nesting": (lambda d: _call(d).update(args=[json.loads("[" * 900 + "]" * 900)]), DamagedFile),
}


@pytest.mark.parametrize("name", MALICE)
def test_a_valid_container_with_a_bad_program(name: str, good: Path, tmp_path: Path) -> None:
    change, error = MALICE[name]
    changed = document(good)
    change(changed)
    with pytest.raises(error) as caught:
        load(rewrite(good, tmp_path / "m.ingot", graph_json=canonical_json.encode(changed)))
    assert caught.value.path == str(tmp_path / "m.ingot") and caught.value.member == "graph.json"
    assert caught.value.why and caught.value.fix


JUNK = (None, True, -1, 2**70, 1.5, math.inf, "junk", "x", [], [[]], {}, {"node": "x"}, {"tuple": [0]}, ["add", 1])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of the document with a key of it."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def test_junk_anywhere_is_a_program_or_a_named_error(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = document(good)
    monkeypatch.setattr(program_file, "canonical_json", types.SimpleNamespace(decode=lambda data: changed))
    load(good)
    generator = random.Random(0)
    places = list(_places(changed))
    leaves = [container[key] for container, key in places if not isinstance(container[key], dict | list)]
    refused = 0
    for container, key in places:
        kept = container.pop(key) if isinstance(container, dict) else container[key]
        way = generator.randrange(4)
        if way or isinstance(container, list):
            container[key] = generator.choice(leaves if way == 1 else JUNK)
        try:
            load(good)
        except IngotError:
            refused += 1
        except Exception as failure:
            raise AssertionError(f"{key!r}: {kept!r:.80} became {container!r:.200}") from failure
        container[key] = kept
    assert refused > len(places) / 2


def test_loading_imports_nothing(good: Path, tmp_path: Path) -> None:
    """A module may import others when it is asked for a name; a file must not make it do so."""
    lazy = types.ModuleType("ingot_test_lazy")

    def getattr_(name: str) -> Any:
        raise AssertionError(f"{name} was asked for")

    lazy.__dict__["__getattr__"] = getattr_
    sys.modules["ingot_test_lazy"] = lazy
    changed = document(good)
    for tree in (changed["signature"]["in_tree"]["children"][0]["children"][1], changed["signature"]["out_tree"]):
        tree.update(kind="dataclass", name="ingot_test_lazy:Name.inner")
    try:
        program = load(rewrite(good, tmp_path / "m.ingot", graph_json=canonical_json.encode(changed)))
        assert type(program.example_inputs[0][1]) is ResultRecord
    finally:
        del sys.modules["ingot_test_lazy"]
