"""Real tensors in a safetensors member: memory that was shared is written once and shared again.

Each tensor is a record, a view of data that lies in the member under a name of its own:

    {"data": "fc.weight", "dtype": "float32", "shape": [8, 4], "stride": [4, 1]}

Data is written in the order of memory, so that a channels-last weight keeps its strides and a contiguous one can be
read by any safetensors library. An expanded tensor is written without its repetition. Views that overlap lie in one
piece of data; a view with holes, alone in its memory, becomes contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ingot import torch_internals as internals
from ingot.errors import FileError
from ingot.ir.names import unique
from ingot.serialization.values import RANK_LIMIT, Cursor, Json, Unwritable, build_guarded, read_device, read_dtype
from ingot_runtime import DTYPES, TensorEntry, TensorsMember, parse_header

_RESERVED = "__metadata__"

# How each element type is stored: safetensors' name, and how many of those make one element.
_STORED: dict[torch.dtype, tuple[str, int]] = {
    torch.bool: ("BOOL", 1),
    torch.uint8: ("U8", 1),
    torch.int8: ("I8", 1),
    torch.uint16: ("U16", 1),
    torch.int16: ("I16", 1),
    torch.uint32: ("U32", 1),
    torch.int32: ("I32", 1),
    torch.uint64: ("U64", 1),
    torch.int64: ("I64", 1),
    torch.float16: ("F16", 1),
    torch.bfloat16: ("BF16", 1),
    torch.float32: ("F32", 1),
    torch.float64: ("F64", 1),
    torch.complex32: ("F16", 2),
    torch.complex64: ("C64", 1),
    torch.complex128: ("F64", 2),
    torch.float8_e4m3fn: ("F8_E4M3", 1),
    torch.float8_e5m2: ("F8_E5M2", 1),
    torch.float8_e8m0fnu: ("F8_E8M0", 1),
    torch.float8_e4m3fnuz: ("F8_E4M3FNUZ", 1),
    torch.float8_e5m2fnuz: ("F8_E5M2FNUZ", 1),
}
# What stands for memory that tensors of several types share.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


@dataclass(slots=True)
class _View:
    """One tensor: its own facts, and the bytes of memory that it reaches."""

    name: str
    tensor: torch.Tensor
    original: torch.Tensor
    begin: int
    end: int
    data: str = ""
    offset: int = 0

    @property
    def layout(self) -> tuple[Any, ...]:
        return self.tensor.dtype, self.begin, tuple(self.tensor.shape), self.tensor.stride()


@dataclass(slots=True)
class _Data:
    """A piece of data to write: its element type, its shape, and how to get it when its turn comes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    tensor: Callable[[], torch.Tensor]


@dataclass(slots=True)
class TensorWriter:
    """Collects tensors, then says how to write them."""

    _views: list[_View] = field(default_factory=list)
    _index: dict[int, int] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor) -> int:
        """The number of the tensor's record; the same tensor under a second name has the same."""
        known = self._index.get(id(tensor))
        if known is not None:
            return known
        plain = _resolve_lazy_bits(tensor)
        begin = plain.data_ptr() if plain.numel() else 0
        self._views.append(_View(name, plain, tensor, begin, begin + _extent(plain) * plain.element_size()))
        self._index[id(tensor)] = len(self._views) - 1
        return len(self._views) - 1

    @property
    def size(self) -> int:
        """How many bytes the tensors reach, each counted for itself."""
        return sum(view.end - view.begin for view in self._views)

    def finish(self) -> tuple[Json, TensorsMember]:
        """The records, and the member with the data."""
        data: dict[str, _Data] = {}
        for group in _overlapping(self._views):
            name = unique(group[0].name, {*data, _RESERVED})
            data[name] = _pack(group)
            for view in group:
                view.data = name
        member = TensorsMember({name: _member_entry(piece) for name, piece in data.items()})
        return [_record(view) for view in self._views], member


def _resolve_lazy_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its values as they lie in memory. Raises Unwritable for one that has no such values."""
    if tensor.layout is torch.strided and type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_quantized:
        tensor = tensor.detach().resolve_conj().resolve_neg()
    if not internals.is_plain(tensor):
        layout = "" if tensor.layout is torch.strided else f" of layout {str(tensor.layout).removeprefix('torch.')}"
        raise Unwritable(f"a {type(tensor).__module__}.{type(tensor).__qualname__}{layout}")
    if tensor.is_meta:
        raise Unwritable("a tensor on the meta device, which has no values")
    if tensor.dtype not in _STORED:
        raise Unwritable(f"a tensor of dtype {tensor.dtype}")
    return tensor


def _extent(tensor: torch.Tensor) -> int:
    """How many elements of memory the tensor reaches from its first one on."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _overlapping(views: list[_View]) -> list[list[_View]]:
    """Groups of views that lie over each other in memory, each in the order the views were added in."""
    order = {id(view): index for index, view in enumerate(views)}
    groups: list[list[_View]] = []
    reach: tuple[torch.device | None, int] = (None, 0)
    for view in sorted(views, key=lambda v: (str(v.tensor.device), v.begin, order[id(v)])):
        device = view.tensor.device
        if view.begin != view.end and reach[0] == device and view.begin < reach[1]:
            groups[-1].append(view)
            reach = device, max(reach[1], view.end)
        else:
            groups.append([view])
            reach = device, view.end
    for group in groups:
        group.sort(key=lambda v: order[id(v)])
    return sorted(groups, key=lambda group: order[id(group[0])])


def _pack(group: list[_View]) -> _Data:
    """The data for views that overlap; sets where each of them begins in it."""
    first = group[0]
    if len({view.layout for view in group}) == 1:
        order = _memory_order(first.tensor)
        if order is None:
            dense = first.tensor.contiguous()
            for view in group:
                view.tensor = dense
            order = list(range(dense.dim()))
        return _read_in_memory_order(first.tensor, order)
    dtypes = {view.tensor.dtype for view in group}
    dtype = dtypes.pop() if len(dtypes) == 1 else _BITS[max(d.itemsize for d in dtypes)]
    begin, end = min(view.begin for view in group), max(view.end for view in group)
    whole = next((v for v in group if (v.begin, v.end) == (begin, end) and _fills(v.tensor)), None)
    begin -= begin % dtype.itemsize
    count = -((begin - end) // dtype.itemsize)
    for view in group:
        view.offset, left = divmod(view.begin - begin, view.tensor.element_size())
        if left:
            raise Unwritable("a tensor that is not aligned in memory and shares it with another")
    if whole is not None and whole.tensor.dtype == dtype:
        return _read_in_memory_order(whole.tensor, _memory_order(whole.tensor) or [])
    return _Data(dtype, (count,), lambda: _gather(group, dtype, count))


def _gather(group: list[_View], dtype: torch.dtype, count: int) -> torch.Tensor:
    """The memory that the views reach; what none of them does is zero."""
    memory = torch.zeros(count, dtype=dtype)
    for view in group:
        tensor = view.tensor
        _make_strided(memory, tensor.dtype, tensor.shape, tensor.stride(), view.offset).copy_(tensor)
    return memory


def _memory_order(tensor: torch.Tensor) -> list[int] | None:
    """The dims from the outermost in memory to the innermost, without repeated ones; None for a tensor with holes."""
    dims = [d for d in range(tensor.dim()) if tensor.stride(d) or tensor.shape[d] == 1]
    if tensor.numel() == 0 or tensor.is_contiguous():
        return list(range(tensor.dim()))
    strides = tensor.stride()
    dims.sort(key=lambda d: (-strides[d], -tensor.shape[d], d))
    expected = 1
    for dim in reversed(dims):
        if tensor.shape[dim] != 1:
            if tensor.stride(dim) != expected:
                return None
            expected *= tensor.shape[dim]
    return dims


def _fills(tensor: torch.Tensor) -> bool:
    """Whether every element of the memory that the tensor reaches is one of its own, and only one."""
    order = _memory_order(tensor)
    return order is not None and len(order) == tensor.dim()


def _read_in_memory_order(tensor: torch.Tensor, order: list[int]) -> _Data:
    base = tensor
    for dim in range(tensor.dim()):
        if dim not in order:
            base = base.narrow(dim, 0, 1)
    inner = base.permute([*(d for d in range(tensor.dim()) if d not in order), *order])
    inner = inner.reshape([tensor.shape[d] for d in order])
    return _Data(tensor.dtype, tuple(inner.shape), lambda: inner)


def _member_entry(data: _Data) -> tuple[str, tuple[int, ...], Callable[[], memoryview]]:
    stored, parts = _STORED[data.dtype]
    return stored, data.shape if parts == 1 else (*data.shape, parts), lambda: _bytes(data.tensor())


def _bytes(tensor: torch.Tensor) -> memoryview:
    tensor = tensor.cpu().contiguous()
    if tensor.numel() == 0:
        return memoryview(b"")
    begin = tensor.storage_offset() * tensor.element_size()
    size = tensor.numel() * tensor.element_size()
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), begin, (size,), (1,))
    return memoryview(flat.numpy().data)


def _make_strided(memory: torch.Tensor, dtype: torch.dtype, shape: Any, stride: Any, offset: int) -> torch.Tensor:
    """A tensor over the bytes of another; not a view in autograd's sense."""
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory.untyped_storage(), offset, shape, stride)


def _record(view: _View) -> Json:
    tensor, original = view.tensor, view.original
    record: dict[str, Json] = {
        "data": view.data,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }
    if view.offset:
        record["offset"] = view.offset
    if tensor.device.type != "cpu":
        record["device"] = str(tensor.device)
    flags = {"parameter": isinstance(original, nn.Parameter), "requires_grad": original.requires_grad}
    return record | {name: True for name, on in flags.items() if on}


# ---------------------------------------------------------------------- reading


def read_tensors(records: Cursor, view: memoryview, path: str, member: str) -> list[torch.Tensor]:
    """The tensors of the records, over the member's own memory."""
    reader = _TensorReader(view, parse_header(view, path=path, member=member), path)
    return [reader.tensor(record) for record in records.items()]


@dataclass(slots=True)
class _TensorReader:
    _view: memoryview
    _entries: Mapping[str, TensorEntry]
    _path: str
    _memory: dict[tuple[str, torch.device], torch.Tensor] = field(default_factory=dict)

    def tensor(self, cursor: Cursor) -> torch.Tensor:
        data_at, dtype_at, shape_at, stride_at, offset_at, device_at, parameter_at, grad_at = cursor.fields(
            "data", "dtype", "shape", "stride", "offset?", "device?", "parameter?", "requires_grad?"
        )
        entry = data_at.one_of(dict(self._entries), "the name of a tensor in the weights")
        dtype = read_dtype(dtype_at)
        if dtype not in _STORED:
            dtype_at.wrong("a dtype that a file can hold")
        shape = [size.integer(0) for size in shape_at.items()]
        stride = [step.integer(0) for step in stride_at.items(len(shape))]
        offset = offset_at.optional(lambda c: c.integer(0)) or 0
        requires_grad = bool(grad_at.optional(Cursor.boolean))
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            dtype_at.wrong("a dtype that has gradients")
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if all(shape) else 0
        if len(shape) > RANK_LIMIT or (offset + extent) * dtype.itemsize > entry.end - entry.begin:
            shape_at.wrong(f"a shape that fits the data of {entry.name!r}")
        memory = self._bytes_of(entry, device_at.optional(read_device) or torch.device("cpu"))
        tensor = build_guarded(
            shape_at, lambda: _make_strided(memory, dtype, shape, stride, offset if all(shape) else 0)
        )
        if parameter_at.optional(Cursor.boolean):
            return nn.Parameter(tensor, requires_grad)
        return tensor.requires_grad_(requires_grad)

    def _bytes_of(self, entry: TensorEntry, device: torch.device) -> torch.Tensor:
        """The data as a tensor of bytes: the file's own pages, of which a write makes private copies."""
        found = self._memory.get((entry.name, device))
        if found is not None:
            return found
        size = entry.end - entry.begin
        if size == 0:
            memory = torch.empty(0, dtype=torch.uint8)
        else:
            memory = torch.frombuffer(self._view, dtype=torch.uint8, count=size, offset=entry.begin)
            pairs = 2 if entry.dtype == "F64" and entry.shape[-1:] == (2,) else 1
            if memory.data_ptr() % (pairs * DTYPES[entry.dtype].itemsize):
                memory = memory.clone()  # complex128, or a file of another program, which need not align
        try:
            memory = memory.to(device)
        except (RuntimeError, AssertionError, NotImplementedError) as failure:
            raise FileError(
                f"the program's tensors belong on {device}, which cannot be used here",
                why=str(failure).partition("\n")[0],
                fix="load it on a machine with that device, or move the model before it is captured",
                path=self._path,
            ) from None
        self._memory[entry.name, device] = memory
        return memory
