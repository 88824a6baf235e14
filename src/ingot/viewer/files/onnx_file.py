"""The graph of an `.onnx` file as a view. Weights are not read, and nothing of the file runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.errors import OnnxUnavailable, ViewError, format_error
from ingot.viewer.pools import encode_runs
from ingot.viewer.source_files import short_path
from ingot.viewer.view_data import NOWHERE, Call, Json, ViewData
from ingot.viewer.weights.onnx_tensors import open_tensor
from ingot.viewer.weights.tensor_pool import TensorPool

if TYPE_CHECKING:
    import onnx

# ONNX's names of element types, in the words of the rest of the page.
_DTYPES = {"float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16"}
_NAMES = {"float": "float32", "double": "float64"}
_SHORT = {"int": "i", "uint": "u"}
_MOST_TEXT = 80


def collect_onnx(path: Path, *, weights: bool = False) -> ViewData:
    """A view of a file; `weights`: their values are kept, to be asked for.

    Raises OnnxUnavailable without the `onnx` package, ViewError where the file is not one.
    """
    try:
        import onnx
    except ImportError as missing:
        raise OnnxUnavailable(
            format_error(
                f"{path} cannot be read.", why="the onnx package is not installed", fix="pip install 'ingot[onnx]'"
            )
        ) from missing
    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's own, of which there are several
        raise _foreign(path, str(error) or type(error).__name__) from None
    if not model.ir_version or not model.HasField("graph"):
        raise _foreign(path, "it has neither a version nor a graph")
    return _OnnxCollector(path, model, weights).collect()


def _foreign(path: Path, why: str) -> ViewError:
    return ViewError(format_error(f"{path} is not an ONNX file.", why=why, fix="export the model again"))


class _OnnxCollector:
    def __init__(self, path: Path, model: onnx.ModelProto, weights: bool) -> None:
        self.model, self.folder = model, path.parent
        tensors = TensorPool() if weights else None
        self.view = ViewData(model.graph.name or path.stem, path.name, "onnx", tensors=tensors)
        self.weights: list[int] = []
        self.graphs: list[Json] = []
        self.lines: list[str] = []
        self.links: list[int] = []
        self.count = 0

    def collect(self) -> ViewData:
        view, model = self.view, self.model
        versions = ", ".join(f"{one.domain or 'ai.onnx'} {one.version}" for one in model.opset_import)
        self._graph(model.graph, "", None, None, 0)
        for function in model.functions:
            self._line(f"function {function.domain}.{function.name}: {len(function.node)} nodes", NOWHERE, 0)
        view.add_stage(
            view.title,
            "graph",
            "capture",
            detail=f"opset {versions}",
            counts={"nodes": self.count},
            graphs=self.graphs,
            texts=[{"name": view.title, "language": "graph", "lines": view.lines.add(self.lines, self.links)}],
            weights=self.weights,
        )
        state = {tensor.name for tensor in model.graph.initializer}
        for values, made in ((model.graph.input, view.inputs), (model.graph.output, view.outputs)):
            for value in values:
                if value.name not in state:
                    made.append({"name": value.name, "path": value.name, "type": self._type(value)})
        names = {dim for item in view.types for dim in item["dims"] or () if isinstance(dim, str)}
        view.dims += [{"name": n, "low": 0, "high": None, "auto": False, "text": n} for n in sorted(names)]
        view.facts += [("opset", versions), ("made by", f"{model.producer_name} {model.producer_version}".strip())]
        view.facts.append(("initializers", f"{len(model.graph.initializer):,}"))
        return view

    def _line(self, text: str, link: int, depth: int) -> None:
        self.lines.append("    " * depth + _one_line(text))
        self.links.append(link)

    def _graph(self, graph: onnx.GraphProto, path: str, parent: str | None, caller: str | None, depth: int) -> None:
        """A graph and those inside it, the outer one first."""
        own: Json = {"path": path, "parent": parent, "caller": caller, "nodes": []}
        self.graphs.append(own)
        types = {value.name: self._type(value) for value in (*graph.input, *graph.output, *graph.value_info)}
        makers: dict[str, str] = {}  # a value by the name of the node that shows it
        indexes: list[int] = []
        state = {tensor.name: tensor for tensor in graph.initializer}
        for name, tensor in state.items():
            shape = self._tensor_type(tensor.data_type, tensor.dims)
            indexes.append(self._add(path, name, "parameter", name, [], shape, NOWHERE, (), name))
            self._keep(indexes[-1], tensor)
            makers[name] = name
        for value in graph.input:
            if value.name not in state:
                text = self._describe(value.name, types.get(value.name, NOWHERE))
                indexes.append(
                    self._add(path, value.name, "input", value.name, [], types[value.name], NOWHERE, (), text)
                )
                self._line(text, indexes[-1], depth)
                makers[value.name] = value.name
        for number, node in enumerate(graph.node):
            self.count += 1
            name = next((one for one in node.output if one), node.name or f"node {number}")
            inner = dict(_subgraphs(node, f"{path}.{name}" if path else name))
            index = self._node(path, name, node, types, makers, tuple(inner))
            indexes.append(index)
            self._line(self.view.nodes.items[index]["text"], index, depth)
            for inner_path, subgraph in inner.items():
                self._graph(subgraph, inner_path, path, name, depth + 1)
            makers.update({one: name for one in node.output if one})
        results = [makers.get(value.name, value.name) for value in graph.output]
        text = f"return {', '.join(value.name for value in graph.output)}"
        indexes.append(self._add(path, "output", "output", "output", results, NOWHERE, NOWHERE, (), text))
        self._line(text, indexes[-1], depth)
        own["nodes"] = encode_runs(indexes)

    def _node(
        self,
        path: str,
        name: str,
        node: onnx.NodeProto,
        types: Mapping[str, int],
        makers: Mapping[str, str],
        inner: tuple[str, ...],
    ) -> int:
        target = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        outputs = [one for one in node.output if one]
        shape = types.get(outputs[0], NOWHERE) if outputs else NOWHERE
        given = [*node.input, *(f"{one.name}={_attribute_text(one)}" for one in node.attribute)]
        text = f"{self._describe(', '.join(outputs) or name, shape)} = {target}({', '.join(given)})"
        inputs = list(dict.fromkeys(makers.get(one, one) for one in node.input if one))
        kind = "constant" if node.op_type == "Constant" else "call" if inner else "operator"
        index = self._add(path, name, kind, target, inputs, shape, self._place(node), inner, text)
        if node.name and node.name != name:  # by which tools of ONNX know it
            self.view.nodes.items[index]["alias"] = node.name
        for attribute in node.attribute if kind == "constant" else ():
            if attribute.name == "value" and attribute.HasField("t"):
                self._keep(index, attribute.t)
        return index

    def _keep(self, index: int, tensor: onnx.TensorProto) -> None:
        """Keeps where the values of a node are."""
        if self.view.tensors is None:
            return
        dtype = _dtype(tensor.data_type)
        found = open_tensor(tensor, self.folder, _NAMES.get(dtype, dtype))
        if found is not None:
            self.weights += (index, self.view.tensors.add_lazy(found))

    def _add(
        self,
        path: str,
        name: str,
        kind: str,
        target: str,
        inputs: list[str],
        shape: int,
        place: int,
        regions: tuple[str, ...],
        text: str,
    ) -> int:
        item = {
            "name": name,
            "kind": kind,
            "target": target,
            "text": _one_line(text),
            "inputs": inputs,
            "type": shape,
            "place": place,
            "regions": list(regions),
        }
        return self.view.nodes.add((path, name, kind, text, tuple(inputs), shape, place), item)

    def _place(self, node: onnx.NodeProto) -> int:
        """Where a node comes from, as Ingot's exporter and torch's write it."""
        known = {one.key: one.value for one in node.metadata_props}
        module = known.get("module", "")
        stack = [Call("", "", "")]
        parts = module.split(".") if module else []
        stack += [Call(".".join(parts[:end]), ".".join(parts[:end]), "") for end in range(1, len(parts) + 1)]
        at = self.view.add_module(stack)
        file, _, line = known.get("source", "").rpartition(":")
        return self.view.add_place(at, short_path(file), int(line)) if file and line.isdigit() else self._nowhere(at)

    def _nowhere(self, module: int) -> int:
        return self.view.add_place(module, None, 0)

    def _type(self, value: onnx.ValueInfoProto) -> int:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return NOWHERE if kind is None else self.view.add_type(kind.removesuffix("_type"))
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            return self.view.add_type(f"{_short(_dtype(tensor.elem_type))}[…]")
        dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
        return self._tensor_type(tensor.elem_type, dims)

    def _tensor_type(self, element: int, dims: Iterable[int | str]) -> int:
        sizes, dtype = list(dims), _dtype(element)
        return self.view.add_type(f"{_short(dtype)}[{', '.join(map(str, sizes))}]", dtype, sizes)

    def _describe(self, name: str, shape: int) -> str:
        return name if shape == NOWHERE else f"{name}: {self.view.types.items[shape]['text']}"


def _subgraphs(node: onnx.NodeProto, path: str) -> Iterator[tuple[str, Any]]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield f"{path}.{attribute.name}", attribute.g
        for number, graph in enumerate(attribute.graphs):
            yield f"{path}.{attribute.name}.{number}", graph


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    import onnx

    if attribute.HasField("g") or attribute.graphs:
        return "graph"
    if attribute.HasField("t"):
        return f"tensor of {'×'.join(map(str, attribute.t.dims)) or 'one value'}"
    value = onnx.helper.get_attribute_value(attribute)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _one_line(text: str) -> str:
    """A name may hold line ends, which would break the lines of the text pane."""
    return " ".join(text.splitlines())


def _dtype(element: int) -> str:
    import onnx

    try:
        return str(onnx.TensorProto.DataType.Name(element)).lower()
    except ValueError:
        return f"type {element}"


def _short(dtype: str) -> str:
    for word, letter in _SHORT.items():
        if dtype.startswith(word) and dtype[len(word) :].isdigit():
            return letter + dtype[len(word) :]
    return _DTYPES.get(dtype, dtype)
