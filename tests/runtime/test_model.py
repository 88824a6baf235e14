"""A compiled model's call: what it takes, what it gives, and what it refuses, around a library written by hand."""

import copy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot_runtime import (
    AssertionFailed,
    BFloat16Array,
    ClosedModel,
    DivisionByZero,
    FieldTuple,
    IndexOutOfRange,
    IngotError,
    InputError,
    LiteralError,
    Model,
    OutOfMemory,
    Record,
    SelfTestFailed,
    StructureError,
    load,
)
from tests.runtime import native_model
from tests.runtime.native_model import MANIFEST, arguments, changed, expected, needs_compiler, refused

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native_model.write(tmp_path_factory.mktemp("native") / "m.ingot")


@pytest.fixture
def model(path: Path) -> Iterator[Model]:
    with load(path, threads=2) as opened:
        yield opened


class TestResults:
    @pytest.mark.parametrize(("n", "picks", "count"), [(1, 0, 0), (3, 2, 5), (64, 100, 1000), (2, 1, 1)])
    def test_numbers_and_nesting(self, model: Model, n: int, picks: int, count: int) -> None:
        args, kwargs = arguments(n, picks, count)
        result = model(*args, **kwargs)
        made = expected(args[0], kwargs["rows"])
        assert list(result) == ["y", "rest", "info", "extra"]
        np.testing.assert_array_equal(result["y"], made["y"], strict=True)
        assert type(result["rest"]) is tuple
        picked, low = result["rest"]
        np.testing.assert_array_equal(picked, made["picked"], strict=True)
        assert isinstance(low, BFloat16Array)
        np.testing.assert_array_equal(low.bits, made["low"], strict=True)
        assert isinstance(result["info"], FieldTuple)
        assert type(result["info"].calls) is int and result["info"].calls == 1
        np.testing.assert_array_equal(result["info"].ramp, np.arange(count, dtype=np.float32), strict=True)
        assert isinstance(result["extra"], Record)
        assert result["extra"].total is args[1] and result["extra"].nothing is None
        np.testing.assert_array_equal(args[1], args[0].sum(0))

    def test_sizes_take_turns(self, model: Model) -> None:
        for n in (1, 5, 1, 64, 5):
            args, kwargs = arguments(n)
            np.testing.assert_array_equal(model(*args, **kwargs)["y"], expected(args[0], [])["y"])

    def test_more_sizes_than_are_remembered(self, model: Model) -> None:
        for count in range(600):
            args, kwargs = arguments(count=count)
            assert model(*args, **kwargs)["info"].ramp.shape == (count,)
        assert len(model._plans) <= 256

    def test_results_are_new_each_time(self, model: Model) -> None:
        args, kwargs = arguments()
        first = model(*args, **kwargs)
        kept = first["y"].copy()
        args[0][:] = 0
        model(*args, **kwargs)
        np.testing.assert_array_equal(first["y"], kept)

    def test_state_belongs_to_the_model(self, path: Path, model: Model) -> None:
        args, kwargs = arguments()
        assert [model(*args, **kwargs)["info"].calls for _ in range(3)] == [1, 2, 3]
        with load(path) as other:
            assert other(*args, **kwargs)["info"].calls == 1
        assert model(*args, **kwargs)["info"].calls == 4

    def test_seed(self, model: Model) -> None:
        args, kwargs = arguments(count=2)
        model.seed(40)
        assert model(*args, **kwargs)["info"].ramp.tolist() == [40, 41]
        for bad in (-1, 2**64, 1.0, True, None):
            with pytest.raises(ValueError, match="seed"):
                model.seed(bad)  # type: ignore[arg-type]


class TestArguments:
    def test_by_position_and_by_name(self, model: Model) -> None:
        (x, total), keyed = arguments()
        rows = keyed.pop("rows")
        wanted = expected(x, rows)["y"]
        for args, kwargs in (
            ((x, total, rows), keyed),
            ((x,), {"total": total, "rows": rows, **keyed}),
            ((), {**keyed, "rows": rows, "total": total, "x": x}),
        ):
            np.testing.assert_array_equal(model(*args, **kwargs)["y"], wanted)

    @pytest.mark.parametrize(
        ("args", "drop", "more", "words"),
        [
            (0, (), {}, ["missing x, total"]),
            (1, (), {}, ["missing total"]),
            (2, ("rows",), {}, ["missing rows", "it takes x, total, rows, options"]),
            (2, (), {"other": 1}, ["unexpected other"]),
            (2, (), {"x": 1}, ["unexpected x"]),
            (4, (), {}, ["more by position"]),
        ],
    )
    def test_missing_and_unexpected(
        self, model: Model, args: int, drop: tuple[str, ...], more: dict[str, Any], words: list[str]
    ) -> None:
        (x, total), keyed = arguments()
        keyed = {name: value for name, value in {**keyed, **more}.items() if name not in drop}
        with pytest.raises(StructureError) as caught:
            model(*(x, total, x, x)[:args], **keyed)
        for word in [*words, "what to do"]:
            assert word in str(caught.value)

    def test_other_nesting(self, model: Model) -> None:
        twice = np.zeros(6, np.float32)
        refused(model, StructureError, "options", "ndarray", "a dict with scale, mode", options=twice)
        refused(model, StructureError, "options", "missing mode", options={"scale": 2.0})
        refused(model, StructureError, "options", "unexpected k", options={"scale": 2.0, "mode": "sum", "k": 1})
        refused(model, StructureError, "twice", "a list of 1", twice=twice)
        refused(model, StructureError, "twice", "2 parts", twice=[twice, twice])
        refused(model, StructureError, "twice", "0 parts", twice=())
        args, kwargs = changed(twice=(twice,))
        assert model(*args, **kwargs)["y"].shape == (3, 4)

    @pytest.mark.parametrize("value", ["mean", None, 3, ["sum"], np.zeros(2)])
    def test_literals_must_repeat(self, model: Model, value: Any) -> None:
        refused(model, LiteralError, "options.mode", "'sum'", options={"scale": 2.0, "mode": value})

    @pytest.mark.parametrize(
        "change",
        [
            lambda x: x.tolist(), lambda x: "x", lambda x: None, lambda x: object(), lambda x: 3, lambda x: 1.5,
            lambda x: x.astype(np.float64), lambda x: x.astype(np.int32), lambda x: x.astype(">f4"),
            lambda x: x.astype(np.complex64), lambda x: x[0], lambda x: x[None], lambda x: x.astype(object),
            lambda x: x.tobytes(), lambda x: np.zeros(3, [("a", "f4")]), lambda x: BFloat16Array.of(x),
            lambda x: x.view(np.uint32), lambda x: np.array(["a"]), lambda x: np.datetime64("2020-01-01"),
        ],
    )  # fmt: skip
    def test_tensor_of_another_type_or_shape(self, model: Model, change: Any) -> None:
        refused(model, InputError, "x ", "compiled for", "what to do", x=change(np.zeros((3, 4), np.float32)))

    def test_messages_name_what_came_and_what_to_do(self, model: Model) -> None:
        x = np.zeros((3, 4))
        refused(model, InputError, "x is float64", "compiled for float32", ".astype(np.float32)", x=x)
        refused(model, InputError, "byte order", x=x.astype(">f4"))
        refused(model, InputError, "x has 1 dims", "compiled for 2", "(12,)", x=x.astype(np.float32).reshape(-1))
        refused(model, InputError, "x is a list", "np.asarray", x=x.tolist())
        scale = {"mode": "sum", "scale": np.float32(2)}
        refused(model, InputError, "options.scale is float32", "float64", options=scale)

    @pytest.mark.parametrize("scale", [2, 2.0, np.float64(2), np.array(2.0), memoryview(np.array(2.0))])
    def test_scalars(self, model: Model, scale: Any) -> None:
        args, kwargs = changed(options={"scale": scale, "mode": "sum"})
        np.testing.assert_array_equal(model(*args, **kwargs)["y"], expected(args[0], [])["y"])

    @pytest.mark.parametrize("count", [True, 2.0, 2**63, -(2**63) - 1, "2", np.int32(2), None, [2]])
    def test_number_is_not_an_int(self, model: Model, count: Any) -> None:
        refused(model, InputError, "count", count=count)

    @pytest.mark.parametrize("scale", [True, 2**53 + 1, "2", 2j, np.float32(2)])
    def test_number_is_not_a_float(self, model: Model, scale: Any) -> None:
        refused(model, InputError, "options.scale", options={"scale": scale, "mode": "sum"})


class TestSizes:
    def test_fixed(self, model: Model) -> None:
        refused(
            model, InputError, "dim 1 of x is 5", "compiled for 4", "float32[batch, 4]", x=np.zeros((3, 5), np.float32)
        )
        refused(model, InputError, "dim 0 of total is 3", total=np.zeros(3, np.float32))

    def test_range(self, model: Model) -> None:
        for n in (0, 65):
            args, kwargs = arguments(n)
            with pytest.raises(InputError, match=rf"dim 0 of x is {n}, outside") as caught:
                model(*args, **kwargs)
            assert "batch from 1 to 64" in str(caught.value)
        refused(model, InputError, "count is 1001", "from 0 to 1000", count=1001)
        refused(model, InputError, "count is -1", count=-1)

    def test_expressions(self, model: Model) -> None:
        short, odd = [np.zeros(4, np.float32)], [np.zeros(7, np.float32)]
        refused(model, InputError, "dim 0 of twice[0] is 4, but must be 6", "(2 * batch) with batch = 3", twice=short)
        refused(model, InputError, "dim 0 of twice[0] is 7, but must be 6", twice=odd)

    def test_the_library_has_the_last_word(self, model: Model) -> None:
        args, kwargs = arguments(13)
        with pytest.raises(InputError, match="13 rows"):
            model(*args, **kwargs)

    def test_symbols_that_must_agree_and_that_are_solved_for(self, tmp_path: Path) -> None:
        manifest = copy.deepcopy(MANIFEST)
        manifest["inputs"][0]["shape"] = ["s0 + 1", 4]  # bound by what follows only
        manifest["inputs"][2]["shape"] = ["s1"]
        manifest["inputs"][4]["shape"] = ["s1"]
        with load(native_model.write(tmp_path / "m.ingot", manifest, sample=None)) as model:
            refused(model, InputError, "dim 0 of twice[0] is 6, but dim 0 of rows is 2", "both are picks")
            args, kwargs = changed(twice=[np.zeros(2, np.float32)])
            assert model(*args, **kwargs)["y"].shape == (3, 4)
            (x, total), kwargs = changed(x=np.zeros((66, 4), np.float32), twice=[np.zeros(2, np.float32)])
            with pytest.raises(InputError, match="batch, by dim 0 of x, is 65, outside"):
                model(x, total, **kwargs)
        manifest["inputs"][0]["shape"] = ["2*s0", 4]
        with load(native_model.write(tmp_path / "m.ingot", manifest, sample=None)) as model:
            words = "dim 0 of x is 3, which is not of the form (2 * batch)"
            refused(model, InputError, words, twice=[np.zeros(2, np.float32)])

    def test_unsolvable_expressions_are_left_to_the_library(self, tmp_path: Path) -> None:
        manifest = copy.deepcopy(MANIFEST)
        manifest["inputs"][0]["shape"] = ["s0//2", 4]
        manifest["inputs"][4]["shape"] = ["6 % (s1 - 2)"]
        with load(native_model.write(tmp_path / "m.ingot", manifest, sample=None)) as model:
            refused(model, InputError, "divides by zero")
            args, kwargs = changed(rows=np.zeros(1, np.int64), twice=[np.zeros(0, np.float32)])
            assert model(*args, **kwargs)["y"].shape == (3, 4)


class TestFailures:
    def test_what_the_model_raises(self, model: Model) -> None:
        x = np.zeros((3, 4), np.float32)
        x[1, 1] = np.nan
        for kind, builtin, words, changes in (
            (AssertionFailed, RuntimeError, "x must not have a NaN (model.py:12)", {"x": x}),
            (IndexOutOfRange, IndexError, "index 3 is out of range for 3 rows", {"rows": np.array([0, 3])}),
            (DivisionByZero, ZeroDivisionError, "divided by zero", {"options": {"scale": 0.0, "mode": "sum"}}),
            (OutOfMemory, MemoryError, "memory", {"options": {"scale": -1e6, "mode": "sum"}}),
            (IngotError, IngotError, "code 77", {"options": {"scale": 1e6, "mode": "sum"}}),
        ):
            args, kwargs = changed(**changes)
            with pytest.raises(kind) as caught:
                model(*args, **kwargs)
            assert words in str(caught.value) and isinstance(caught.value, builtin)
        args, kwargs = arguments()
        assert model(*args, **kwargs)["info"].calls == 1  # and it still works

    def test_closed(self, path: Path) -> None:
        model = load(path)
        model.close()
        model.close()
        args, kwargs = arguments()
        with pytest.raises(ClosedModel):
            model(*args, **kwargs)
        with pytest.raises(ClosedModel):
            model.seed(1)

    @pytest.mark.parametrize("threads", [0, -1, 1.0, True, "2", 10**6])
    def test_threads(self, path: Path, threads: Any) -> None:
        with pytest.raises(ValueError, match="threads"):
            load(path, threads)

    def test_self_test(self, path: Path, model: Model, tmp_path: Path) -> None:
        args, kwargs = arguments()
        model(*args, **kwargs)
        assert model.self_test() == 0 == model.self_test()
        assert model(*args, **kwargs)["info"].calls == 2  # its own state is untouched
        with load(native_model.write(tmp_path / "m.ingot", sample=None)) as other:
            with pytest.raises(SelfTestFailed, match="no sample"):
                other.self_test()

    @pytest.mark.parametrize(
        ("name", "change", "word"),
        [
            ("y", lambda a: a + np.float32(1e-3), "y["),
            ("y", lambda a: np.where(a > 10, np.nan, a).astype(np.float32), "nan"),
            ("y", lambda a: a[:2], "shape"),
            ("low", lambda a: BFloat16Array(a.bits ^ 1), "low["),
            ("calls", lambda a: a + 1, "calls is 1"),
            ("total", lambda a: a + np.float32(1), "total after the call[1]"),
        ],
    )
    def test_a_self_test_that_fails(self, tmp_path: Path, name: str, change: Any, word: str) -> None:
        good = native_model.sample()
        outputs, mutated = dict(good.outputs), dict(good.mutated)
        side = outputs if name in outputs else mutated
        side[name] = change(side[name])
        bad = type(good)(good.inputs, outputs, mutated, good.tolerance)
        with load(native_model.write(tmp_path / "m.ingot", sample=bad)) as model:
            with pytest.raises(SelfTestFailed) as caught:
                model.self_test()
        assert word in str(caught.value)

    def test_describe(self, model: Model, path: Path) -> None:
        text = model.describe()
        for word in (str(path), "x: float32[batch, 4]", "total: float32[4] (written to)", "batch from 1 to 64",
                     "twice[0]: float32[2*batch]", "low: bfloat16[batch]"):  # fmt: skip
            assert word in text


class TestThreads:
    def test_many_callers_of_one_model(self, model: Model) -> None:
        failures: list[BaseException] = []
        calls: list[int] = []

        def work(seed: int) -> None:
            try:
                random = np.random.default_rng(seed)
                for _ in range(60):
                    args, kwargs = arguments(n=int(random.integers(14, 64)), picks=int(random.integers(0, 9)))
                    args[0][:] = random.normal(size=args[0].shape)
                    result = model(*args, **kwargs)
                    np.testing.assert_allclose(result["y"], expected(args[0], [])["y"], rtol=1e-5, atol=1e-5)
                    calls.append(result["info"].calls)
            except BaseException as failure:
                failures.append(failure)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failures
        assert sorted(calls) == list(range(1, 361))

    def test_closing_waits_for_calls_that_are_under_way(self, path: Path) -> None:
        model = load(path)
        model._native._enter()
        model.close()
        assert model._native._release.alive  # type: ignore[attr-defined]
        model._native._leave()
        assert not model._native._release.alive  # type: ignore[attr-defined]


class TestWithoutTorch:
    def test_a_process_that_never_imports_torch(self, path: Path, tmp_path: Path) -> None:
        code = """
import sys
import numpy as np
before = set(sys.modules)
import ingot_runtime
model = ingot_runtime.load(sys.argv[1])
x = np.ones((2, 4), np.float32)
y = model(x, np.zeros(4, np.float32), rows=np.array([1]), options={"scale": 1.0, "mode": "sum"},
          twice=[np.zeros(4, np.float32)], count=3)["y"]
assert y[0].tolist() == [1.25, 2.0, -2.0, -7.5], y
model.self_test()
assert "torch" not in sys.modules and "ingot" not in sys.modules
print(*sorted(sys.modules.keys() - before))
"""
        source = Path(__file__).resolve().parents[2] / "src"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, str(path)],
            env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"}, cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        imported = set(done.stdout.split())
        assert "ingot_runtime.model" in imported
        if sys.platform == "linux":  # elsewhere the processor is asked, and a library loaded, in other ways
            slow = {"_hashlib", "asyncio", "dataclasses", "pathlib", "subprocess", "tempfile", "unittest", "zipfile"}
            assert not imported & slow, "each takes milliseconds, which the start of every process would pay"

    def test_torch_tensors_are_taken_without_a_copy(self, model: Model) -> None:
        torch = pytest.importorskip("torch")
        (x, total), keyed = arguments()
        tensors = {
            name: torch.from_numpy(value) for name, value in (("x", x), ("total", total), ("rows", keyed["rows"]))
        }
        keyed |= {"rows": tensors["rows"], "options": {"scale": torch.tensor(2.0, dtype=torch.float64), "mode": "sum"}}
        keyed["twice"] = [torch.zeros(6)]
        y = torch.empty(3, 4)
        result = model(tensors["x"], tensors["total"], **keyed, out={"y": y, "rest": None, "info": None, "extra": None})
        assert result["y"] is y and result["extra"].total is tensors["total"]
        np.testing.assert_array_equal(y.numpy(), expected(x, [])["y"])
        np.testing.assert_array_equal(total, x.sum(0))
        low = torch.from_dlpack(result["rest"][1])
        assert low.dtype == torch.bfloat16
        assert torch.equal(torch.from_dlpack(result["rest"][0]), y[tensors["rows"]])
        strided = torch.from_numpy(x.T.copy()).T
        np.testing.assert_array_equal(model(strided, total, **keyed)["y"], expected(x, [])["y"])

    def test_torch_tensors_that_cannot_be_taken(self, model: Model) -> None:
        torch = pytest.importorskip("torch")
        refused(model, InputError, "x is a Tensor", "detach", x=torch.zeros(3, 4, requires_grad=True))
        refused(model, InputError, "x is float64", x=torch.zeros(3, 4, dtype=torch.float64))
        refused(model, InputError, "x is a Tensor", x=torch.zeros(3, 4, device="meta"))
        refused(model, InputError, "x is bfloat16", x=torch.zeros(3, 4, dtype=torch.bfloat16))
