"""A Program file calls operators that compute, and no others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot import torch_internals as internals
from ingot.errors import DamagedFile, ForbiddenOperator, SaveError, UnsupportedOperator
from ingot.serialization.allowed_operators import HIGHER_ORDER, TABLE, is_allowed
from ingot_runtime import open_container, write_container
from ingot_runtime.container import canonical_json
from tests.serialization import operator_table


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "p.ingot"
    ingot.capture(torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),)).save(path)
    return path


def edited(path: Path, target: Path, edit: Callable[[Any], None]) -> Path:
    with open_container(path) as opened:
        members = {name: bytes(opened.read(name)) for name in opened.names}
        fields = {k: v for k, v in opened.manifest.items() if k not in ("format", "schema", "members")}
    document = canonical_json.decode(members["graph.json"])
    edit(document)
    write_container(target, {**members, "graph.json": canonical_json.encode(document)}, fields)
    return target


def call(name: str, target: dict[str, str], *args: Any, value: Any = None) -> Callable[[Any], None]:
    """Puts one more call in front of the graph's first."""

    def edit(document: Any) -> None:
        nodes = document["graph"]["nodes"]
        at = next(number for number, node in enumerate(nodes) if node["op"] == "call_function")
        made = {"op": "call_function", "name": name, "target": target, "args": list(args), "kwargs": []}
        nodes.insert(at, made if value is None else {**made, "value": value})

    return edit


class TestTable:
    def test_every_entry_follows_the_rule(self) -> None:
        operators = set(operator_table.allowed())
        entries = {
            f"{name}.{overload}"
            for name, *overloads in (line.split() for line in TABLE.read_text().splitlines()[1:])
            for overload in overloads
        }
        # A few, such as aten::dim, are the dispatcher's only from some release on.
        known = {entry for entry in entries if _schema(entry) is not None and _is_dispatched(entry)}
        assert known == entries & operators
        assert len(known) > 2000

    def test_it_has_every_operator_that_follows_the_rule(self) -> None:
        if not torch.__version__.startswith("2.13"):
            pytest.skip("the table is made with another torch")
        # In a process of its own: torch.compile registers operators of its own here when it is first used.
        script = "from tests.serialization import operator_table as t; print(t.table_of(t.allowed()), end='')"
        root = Path(__file__).parents[2]
        done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
        assert done.stdout == TABLE.read_text()

    @pytest.mark.parametrize(
        "name",
        [
            *("aten::from_file.default", "aten::from_file.out", "aten::save.default", "aten::_print.default"),
            *("aten::set_.source_Storage", "aten::set_.source_Tensor_storage_offset", "aten::set_data.default"),
            *("aten::_reshape_alias.default", "aten::record_stream.default", "aten::_pin_memory.default"),
            *("aten::_sparse_coo_tensor_unsafe.default", "aten::_nested_view_from_buffer.default"),
            *("aten::_backward.default", "inductor::_reinterpret_tensor.default"),
            *("symm_mem::get_remote_tensors.default",),
            *("inductor::resize_storage_bytes_.default", "profiler::_record_function_enter.default"),
            *("ingot_aten::from_file.default", "unwritten_aten::from_file.default", "prim::data.default"),
            *("ingot_unwritten_aten::from_file.default", "c10d::send.default", "quantized::linear.default"),
        ],
    )  # fmt: skip
    def test_what_is_refused(self, name: str) -> None:
        namespace, _, rest = name.partition("::")
        assert not is_allowed(namespace, *rest.split("."))

    def test_what_is_allowed(self) -> None:
        for name in (
            "aten::add.Tensor",
            "aten::linear.default",
            "ingot_aten::bernoulli.default",
            "ingot::after.default",
        ):
            namespace, _, rest = name.partition("::")
            assert is_allowed(namespace, *rest.split("."), custom=False)
        assert is_allowed("mine", "f", "default") and not is_allowed("mine", "f", "default", custom=False)

    def test_higher_order_operators_of_the_list_exist(self) -> None:
        known = internals.higher_order_operators()
        assert {"cond", "while_loop", "scan"} <= HIGHER_ORDER & known.keys()
        assert not HIGHER_ORDER & {"call_torchbind", "triton_kernel_wrapper_mutation", "print", "aoti_call_delegate"}


class TestFiles:
    def test_a_file_that_would_write_another(self, good: Path, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("precious data 0123456789")
        value = {"tensor": {"dtype": "float32", "shape": [6], "stride": [1]}}
        for name in ("aten::from_file.default", "ingot_aten::from_file.default", "unwritten_aten::from_file.default"):
            bad = edited(
                good, tmp_path / "p.ingot", call("evil", {"operator": name}, str(victim), True, 6, value=value)
            )
            for trust in (True, False):
                with pytest.raises(ForbiddenOperator, match="from_file"):
                    ingot.load(bad, trust=trust)
        assert victim.read_text() == "precious data 0123456789"

    @pytest.mark.parametrize("name", ["call_torchbind", "print"])
    def test_a_higher_order_operator(self, name: str, good: Path, tmp_path: Path) -> None:
        with pytest.raises(ForbiddenOperator):
            ingot.load(edited(good, tmp_path / "p.ingot", call("evil", {"higher_order": name}, "text")))

    def test_a_program_that_names_one_is_not_saved(self, tmp_path: Path) -> None:
        program = ingot.capture(lambda x: torch.ops.aten._reshape_alias(x, (2, 2), (2, 1)) + 1, (torch.ones(4),))
        with pytest.raises(SaveError, match="_reshape_alias"):
            program.save(tmp_path / "p.ingot")
        assert not list(tmp_path.iterdir())

    def test_operators_of_other_libraries(self, tmp_path: Path) -> None:
        library = torch.library.Library("ingot_test_trust", "DEF")
        try:
            library.define("double(Tensor x) -> Tensor")
            library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
            torch.library.register_fake("ingot_test_trust::double", torch.empty_like, lib=library)
            program = ingot.capture(lambda x: torch.ops.ingot_test_trust.double(x) + 1, (torch.ones(2),))
            program.save(tmp_path / "p.ingot")
            assert ingot.load(tmp_path / "p.ingot")(torch.ones(2)).tolist() == [3, 3]
            with pytest.raises(ForbiddenOperator):
                ingot.load(tmp_path / "p.ingot", trust=False)
        finally:
            library._destroy()

    @pytest.mark.parametrize(
        ("function", "args"),
        [("operator.pow", (9, 10**9)), ("operator.lshift", (1, 10**12)), ("operator.pow", (2, 1e9))],
    )
    def test_numbers_that_would_fill_the_memory(
        self, function: str, args: tuple[Any, ...], good: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(DamagedFile, match="exponent"):
            ingot.load(edited(good, tmp_path / "p.ingot", call("evil", {"function": function}, *args, value=5)))

    def test_claims_that_do_not_hold(self, good: Path, tmp_path: Path) -> None:
        def edit(document: Any) -> None:
            node = next(node for node in document["graph"]["nodes"] if node["op"] == "call_function")
            node["value"]["tensor"].update(shape=[1000, 4])

        with pytest.raises(DamagedFile, match="fake-run"):
            ingot.load(edited(good, tmp_path / "p.ingot", edit))


class TestStridedViews:
    """Fakes have no memory to be outside: lowering asks, or the run does."""

    @pytest.mark.parametrize(("stride", "offset"), [((100, 1), 0), ((1, 1), 7), ((4, 1), 3)])
    def test_beyond_the_tensor(self, stride: tuple[int, int], offset: int, tmp_path: Path) -> None:
        x = torch.arange(8.0)
        path = tmp_path / "p.ingot"
        ingot.capture(lambda x: torch.as_strided(x, (2, 2), (1, 1), 0) + 0, (x,)).save(path)

        def edit(document: Any) -> None:
            node = next(node for node in document["graph"]["nodes"] if node["name"].startswith("as_strided"))
            node["args"][2:] = [list(stride), offset]
            node["value"]["tensor"].update(stride=list(stride), **({"offset": offset} if offset else {}))

        program = ingot.load(edited(path, tmp_path / "q.ingot", edit))
        with pytest.raises(RuntimeError):
            program(x)
        with pytest.raises(UnsupportedOperator, match="reaches element"):
            ingot.compile(program)

    def test_inside_of_it(self) -> None:
        x = torch.arange(8.0)
        compiled = ingot.compile(lambda x: torch.as_strided(x, (2, 3), (3, 1), 2) + 0, (x,))
        assert compiled(x).tolist() == [[2, 3, 4], [5, 6, 7]]

    def test_a_size_that_the_run_knows(self) -> None:
        x = torch.arange(8.0)
        compiled = ingot.compile(
            lambda x: torch.as_strided(x, (x.shape[0] // 2, 2), (2, 1), 0) + 0, (x,), dynamic_shapes={"x": {0: "n"}}
        )
        for count in (8, 9, 2):
            y = torch.arange(float(count))
            assert torch.equal(compiled(y), torch.as_strided(y, (count // 2, 2), (2, 1), 0))


def _is_dispatched(entry: str) -> bool:
    return bool(torch._C._dispatch_has_kernel(entry.removesuffix(".default")))


def _schema(entry: str) -> Any:
    namespace, _, rest = entry.partition("::")
    found = internals.operator_named(namespace, *rest.split("."))
    return None if found is None else found._schema
