"""Every number of a weight: read in blocks, sent by the server, saved as .npy, held by an exported page."""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import ViewError
from ingot.viewer import page
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.entry import view_program
from ingot.viewer.files.onnx_file import collect_onnx
from ingot.viewer.page import hold_weights
from ingot.viewer.server import ADDRESS, PageServer, files_of
from ingot.viewer.view_data import Json, ViewData
from ingot.viewer.weights.tensor_pool import TensorPool, blocks_of, file_pieces, file_size
from ingot.viewer.weights.weight_files import MOST_VALUES, answer_weights
from ingot.viewer.weights.weight_statistics import summarize_weight
from tests.viewer.models import Mlp

DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 complex64 complex128"


class Large:
    """More values than memory would hold: each is its row and column."""

    shape: tuple[int, ...] = (50_000, 4_096)
    dtype = "int32"
    most = 0

    def read(self, fixed: tuple[int, ...], rows: slice, columns: slice) -> Any:
        block = np.add.outer(np.arange(rows.start, rows.stop) * 10_000, np.arange(columns.start, columns.stop))
        Large.most = max(Large.most, block.size)
        return block.astype(np.int32)

    def read_all(self, fixed: tuple[int, ...], part: slice) -> Any:
        assert fixed == ()
        return self.read(fixed, part, slice(0, self.shape[1]))


def weights_of(data: Json, stage: Json) -> dict[str, int]:
    pairs = stage["weights"]
    return {data["nodes"][node]["target"]: weight for node, weight in zip(pairs[::2], pairs[1::2], strict=True)}


def values(pool: TensorPool, number: int) -> np.ndarray[Any, Any]:
    """A tensor as its file says."""
    found = np.load(io.BytesIO(b"".join(file_pieces(pool.items[number]))))
    return np.asarray(found)


@pytest.mark.parametrize("name", DTYPES.split())
def test_every_dtype_comes_back(name: str) -> None:
    dtype = getattr(torch, name)
    tensor = (torch.arange(24).reshape(2, 3, 4) % 5).to(dtype)
    pool = TensorPool()
    number = pool.add(tensor)
    found = values(pool, number)
    expected = tensor.float() if dtype is torch.bfloat16 else tensor
    assert found.shape == (2, 3, 4) and np.array_equal(found, expected.numpy()), found
    assert file_size(pool.items[number]) == sum(map(len, file_pieces(pool.items[number])))
    block = pool.read(number, (1,), (1, 3), (2, 4))
    size = 2 if dtype is torch.bfloat16 else expected.element_size()
    assert block is not None and len(block) == 4 * size
    if dtype is not torch.bfloat16:
        assert np.array_equal(np.frombuffer(block, found.dtype).reshape(2, 2), expected[1, 1:3, 2:4].numpy())


def test_odd_values_are_kept() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45])
    pool = TensorPool()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        found = values(pool, pool.add(odd.to(dtype)))
        assert np.isnan(found[0]) and found[1] == np.inf and found[2] == -np.inf and np.signbit(found[3])


def test_statistics_of_a_weight() -> None:
    torch.manual_seed(0)
    pool = TensorPool()
    normal = torch.randn(3, 700, 500) * 0.01 + 1000  # several pieces; a mean that is large beside the deviation
    found = summarize_weight(pool.items[pool.add(normal)])
    exact = normal.double()
    assert found["count"] == exact.numel() and found["min"] == exact.min() and found["max"] == exact.max()
    assert math.isclose(found["mean"], exact.mean(), rel_tol=1e-12)
    assert math.isclose(found["std"], exact.std(correction=0), rel_tol=1e-6)
    odd = torch.tensor([0.0, 2.0, math.nan, math.inf, -math.inf]).bfloat16()
    found = summarize_weight(pool.items[pool.add(odd)])
    assert (found["min"], found["max"], found["mean"], found["std"]) == (0, 2, 1, 1)
    assert (found["nan"], found["inf"], found["zeros"]) == (1, 2, 1)
    found = summarize_weight(pool.items[pool.add(torch.tensor([True, True, False]))])
    assert found["zeros"] == 1 and math.isclose(found["mean"], 2 / 3)
    empty = summarize_weight(pool.items[pool.add(torch.empty(0, 3))])
    assert empty["count"] == 0 and empty["min"] is None and empty["mean"] is None
    assert summarize_weight(pool.items[pool.add(torch.ones(2, dtype=torch.complex64))]) is None
    assert summarize_weight(Large()) is None, "too many to wait for"


def test_shapes_of_every_kind() -> None:
    pool = TensorPool()
    scalar, vector, empty = pool.add(torch.tensor(3.5)), pool.add(torch.arange(5)), pool.add(torch.empty(0, 4))
    assert np.frombuffer(pool.read(scalar, (), (0, 1), (0, 1)) or b"", "<f4") == 3.5
    assert list(np.frombuffer(pool.read(vector, (), (1, 4), (0, 1)) or b"", "<i8")) == [1, 2, 3]
    assert pool.read(empty, (), (0, 1), (0, 1)) is None and values(pool, empty).shape == (0, 4)
    assert values(pool, scalar).shape == () and values(pool, pool.add(torch.ones(2, 0, 3))).shape == (2, 0, 3)
    turned = pool.add(torch.arange(6).reshape(2, 3).t())
    assert values(pool, turned).tolist() == [[0, 3], [1, 4], [2, 5]]
    deep = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    block = pool.read(pool.add(deep), (1, 2), (3, 4), (1, 5))
    assert list(np.frombuffer(block or b"", "<i8")) == deep[1, 2, 3, 1:5].tolist()


@pytest.mark.parametrize("shape", [(512, 300, 3, 3), (3, 5, 400, 300), (2, 400_000), (300_001,), (70_000, 2, 2)])
def test_pieces_are_neither_small_nor_large(shape: tuple[int, ...]) -> None:
    pool = TensorPool()
    tensor = torch.arange(math.prod(shape)).reshape(shape).int()
    number = pool.add(tensor)
    pieces = list(blocks_of(pool.items[number]))
    assert b"".join(pieces) == tensor.numpy().tobytes()
    assert len(pieces) <= 2 + 3 * (tensor.numel() * 4 >> 20) and max(map(len, pieces)) <= 1 << 20


def test_small_floats_are_widened() -> None:
    pool = TensorPool()
    tensor = torch.tensor([0.5, -1.5, 448.0]).to(torch.float8_e4m3fn)
    number = pool.add(tensor)
    assert values(pool, number).tolist() == [0.5, -1.5, 448.0]
    assert pool.describe()[number] == {"dtype": "float8_e4m3fn", "shape": [3], "wire": "f32"}


def test_what_has_no_values_is_left_out() -> None:
    pool = TensorPool()
    fake = torch.empty(3, device="meta")
    assert [pool.add(one) for one in (fake, None, 3, torch.eye(2).to_sparse())] == [-1, -1, -1, -1]


def test_a_tensor_is_there_once() -> None:
    pool = TensorPool()
    weight = nn.Parameter(torch.ones(3, 4))
    assert pool.add(weight) == pool.add(weight.data) == pool.add(weight.detach()) == 0
    assert pool.add(weight.t()) == 1 and pool.add(torch.ones(3, 4)) == 2
    assert len({pool.add(torch.empty(0)) for _ in range(3)}) == 3


def test_a_program_and_its_stages() -> None:
    torch.manual_seed(0)
    program = ingot.capture(Mlp().eval(), (torch.ones(3, 4),))
    view = collect_program(program, ViewOptions(weights=True))
    data = view.to_json()
    first = weights_of(data, data["stages"][0])
    assert set(first) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert view.tensors is not None
    for name, number in first.items():
        assert np.array_equal(values(view.tensors, number), program.state_dict[name].detach().numpy())
    assert collect_program(program, ViewOptions()).to_json()["weights"] == []


class Normalized(nn.Module):
    """A normalization that a pass folds into the weights, and a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        nn.init.constant_(self.norm.weight, 4.0)
        self.scale = torch.full((3, 1, 1), 3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x)) * self.scale


def test_a_stage_has_its_own_values() -> None:
    model = Normalized().eval()
    view = collect_program(ingot.capture(model, (torch.ones(1, 2, 4, 4),)), ViewOptions(weights=True))
    data, pool = view.to_json(), view.tensors
    assert pool is not None
    stages = [weights_of(data, stage) for stage in data["stages"] if stage["kind"] == "graph"]
    assert any(values(pool, number).ravel()[0] == 3.0 for number in stages[0].values()), "the constant"
    original = model.layer.weight.detach().numpy()
    assert np.array_equal(values(pool, stages[0]["layer.weight"]), original)
    last = [values(pool, number) for number in stages[-1].values()]
    assert any(one.shape == original.shape and np.allclose(one, 4 * original, 1e-3) for one in last), "as it was folded"


def test_saved_programs_and_quantized_weights(tmp_path: Path) -> None:
    program = ingot.capture(nn.Sequential(nn.Linear(64, 32)).eval(), (torch.ones(3, 64),))
    prepared = ingot.quantize.prepare(program, ingot.quantize.int4_weight_only(group_size=32))
    converted = ingot.quantize.convert(prepared)
    converted.save(tmp_path / "m.ingot")
    view = collect_program(ingot.load(tmp_path / "m.ingot"), ViewOptions(weights=True))
    data = view.to_json()
    codes = next(n for name, n in weights_of(data, data["stages"][0]).items() if "int4" in name)
    assert view.tensors is not None
    assert values(view.tensors, codes).min() >= -8 and values(view.tensors, codes).max() <= 7


def _onnx(path: Path, external: str | None = None, location: str = "data.bin") -> list[Any]:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    given = [rng.standard_normal((5, 6)).astype(np.float32), np.arange(-8, 8, dtype=np.int64).reshape(2, 8)]
    tensors = [numpy_helper.from_array(given[0], "w"), numpy_helper.from_array(given[1], "i")]
    tensors.append(helper.make_tensor("packed", TensorProto.INT4, [3, 5], [(v % 16) - 8 for v in range(15)]))
    tensors.append(helper.make_tensor("half", TensorProto.BFLOAT16, [4], [0.5, -1.5, 3.0, math.inf]))
    tensors.append(helper.make_tensor("words", TensorProto.STRING, [1], [b"x"]))
    tensors.append(helper.make_tensor("scalar", TensorProto.DOUBLE, [], [2.5]))
    if external is not None:
        (path.parent / "data.bin").write_bytes(b"\0" * 64 + given[0].tobytes())
        tensors[0].ClearField("raw_data")
        tensors[0].data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "64"), ("length", external)):
            tensors[0].external_data.add(key=key, value=value)
    node = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.eye(2, dtype=bool), "c"))
    out = helper.make_tensor_value_info("c", TensorProto.BOOL, [2, 2])
    onnx.save(helper.make_model(helper.make_graph([node], "g", [], [out], tensors)), path)
    return given


@pytest.mark.parametrize("external", [None, "120"])
def test_onnx(tmp_path: Path, external: str | None) -> None:
    given = _onnx(tmp_path / "m.onnx", external)
    view = collect_onnx(tmp_path / "m.onnx", weights=True)
    data = view.to_json()
    assert view.tensors is not None
    pairs = data["stages"][0]["weights"]
    found = {data["nodes"][node]["name"]: n for node, n in zip(pairs[::2], pairs[1::2], strict=True)}
    assert set(found) == {"w", "i", "packed", "half", "scalar", "c"}, "strings have no numbers"
    assert np.array_equal(values(view.tensors, found["w"]), given[0])
    assert np.array_equal(values(view.tensors, found["i"]), given[1])
    assert values(view.tensors, found["packed"]).ravel().tolist() == [v - 8 for v in range(15)]
    assert values(view.tensors, found["half"]).tolist() == [0.5, -1.5, 3.0, math.inf]
    assert (
        values(view.tensors, found["scalar"]) == 2.5 and values(view.tensors, found["c"]).tolist() == np.eye(2).tolist()
    )
    assert data["weights"][found["packed"]] == {"dtype": "int4", "shape": [3, 5], "wire": "i8"}
    assert collect_onnx(tmp_path / "m.onnx").to_json()["weights"] == []


@pytest.mark.parametrize("location", ["../data.bin", "/etc/hostname", "", "sub/../../data.bin", "link.bin"])
def test_an_onnx_file_names_no_file_elsewhere(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "data.bin").write_bytes(b"secret" * 100)
    (folder / "link.bin").symlink_to(tmp_path / "data.bin")
    _onnx(folder / "m.onnx", "120", location)
    view = collect_onnx(folder / "m.onnx", weights=True)
    assert view.tensors is not None
    with pytest.raises(ValueError, match="outside the folder"):
        answer_weights(view.tensors, "weights/0/-/0-1/0-1")


def test_a_short_file_of_weights_is_an_error(tmp_path: Path) -> None:
    _onnx(tmp_path / "m.onnx", "120")
    (tmp_path / "data.bin").write_bytes(b"\0" * 70)
    view = collect_onnx(tmp_path / "m.onnx", weights=True)
    assert view.tensors is not None
    for path in ("weights/0/-/0-1/0-1", "weights/0.npy"):
        with pytest.raises((ValueError, OSError)):
            answer_weights(view.tensors, path)


@pytest.fixture
def server(plain_assets: None) -> Iterator[PageServer]:
    pool = TensorPool()
    pool.add(torch.arange(24).reshape(2, 3, 4).float())
    pool.add_lazy(Large())
    with PageServer(files_of(ViewData("net", "", "program", tensors=pool).to_json()), weights=pool) as made:
        made.start()
        yield made


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(ADDRESS, server.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        assert (
            answer.getheader("X-Content-Type-Options") == "nosniff" and answer.getheader("Cache-Control") == "no-store"
        )
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_server_sends_blocks(server: PageServer) -> None:
    root = f"/{server.token}/weights"
    status, body = ask(server, f"{root}/0/1/0-2/1-3")
    assert status == 200 and list(np.frombuffer(body, "<f4")) == [13, 14, 17, 18]
    status, body = ask(server, f"{root}/1/-/49999-50000/4090-4096")
    assert status == 200 and list(np.frombuffer(body, "<i4")) == [499_990_000 + at for at in range(4090, 4096)]
    assert ask(server, f"{root}/0/1/0-2/1-3", "HEAD") == (200, b"")
    status, body = ask(server, f"{root}/0.npy")
    assert json.loads(ask(server, f"{root}/0.json")[1])["mean"] == 11.5
    assert status == 200 and np.load(io.BytesIO(body)).tolist() == torch.arange(24).reshape(2, 3, 4).tolist()
    assert json.loads(ask(server, f"/{server.token}/view.json")[1])["weights"][1]["shape"] == [50_000, 4_096]


@pytest.mark.parametrize(
    "path",
    [
        "0", "0/", "0/1/0-2", "0/1/0-2/1-3/", "0/1/0-2/1-3?x", "0/1/2-0/1-3", "0/1/0-0/1-3", "0/1/0-4/1-3",
        "0/1/0-2/1-5", "0/2/0-2/1-3", "0/-/0-2/1-3", "0/1.1/0-2/1-3", "0/-1/0-2/1-3", "0/1/-1-2/1-3", "2/-/0-1/0-1",
        "-1/-/0-1/0-1", "00000000/1/0-2/1-3", "0/1/0-2/1-3%00", "0/１/0-2/1-3", "1/-/0-50000/0-4096",
        f"1/-/0-{MOST_VALUES // 2}/0-3",
        "../view.json", "2.npy", "-1.npy", "x.npy", "0.npy/", "0.npz", "2.json", "0.json?",
        "0.jsonx", "0/../0.npy", "%2e%2e/view.json",
        "99999999999999999999.npy", "0/1/0-99999999999999999999/0-1",
    ],
)  # fmt: skip
def test_the_server_refuses_everything_else(server: PageServer, path: str) -> None:
    Large.most = 0
    try:
        status, body = ask(server, f"/{server.token}/weights/{path}")
    except UnicodeEncodeError:
        return  # such a path cannot be asked for
    assert status == 404 and b"\x93NUMPY" not in body and Large.most == 0


def test_values_need_the_token_and_this_host(server: PageServer) -> None:
    for path in ("/weights/0.npy", "/wrong/weights/0/1/0-2/1-3", f"/{server.token[:-1]}/weights/0.npy"):
        assert ask(server, path)[0] == 403
    path = f"/{server.token}/weights/0.npy"
    assert ask(server, path, Host="evil.example")[0] == 403
    assert ask(server, path, Origin="http://evil.example")[0] == 403
    assert ask(server, path, **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert ask(server, path, "POST")[0] == 405


def test_a_large_weight_is_read_as_it_is_sent() -> None:
    pool = TensorPool()
    pool.add_lazy(Large())
    Large.most = 0
    answer = answer_weights(pool, "weights/0.npy")
    assert answer is not None and answer.size == 50_000 * 4_096 * 4 + 128
    assert Large.most <= 1 << 18, "a megabyte at a time"


def test_a_server_without_weights_has_none(plain_assets: None) -> None:
    with PageServer(files_of(ViewData("net", "", "program").to_json())) as made:
        made.start()
        assert ask(made, f"/{made.token}/weights/0.npy")[0] == 404


def test_an_exported_page_has_values_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "read_asset", lambda name: "run();")
    monkeypatch.setattr(page, "PLAIN", 1 << 30)
    view = view_program(ingot.capture(Mlp().eval(), (torch.ones(3, 4),)))
    assert len(view.data["weights"]) >= 4
    view.save(tmp_path / "without.html")
    assert '"weights":[],"compare"' in (tmp_path / "without.html").read_text()
    view.save(tmp_path / "with.html", weights=True)
    held = hold_weights(view.data, view._tensors)["weights"]
    assert held[0]["data"] in (tmp_path / "with.html").read_text()
    assert len(base64.b64decode(held[0]["data"])) == math.prod(held[0]["shape"]) * 4
    monkeypatch.setattr(page, "MOST_WEIGHTS", 100)
    with pytest.raises(ViewError, match=r"weights have .* MB"):
        view.save(tmp_path / "large.html", weights=True)
    assert not (tmp_path / "large.html").exists()
