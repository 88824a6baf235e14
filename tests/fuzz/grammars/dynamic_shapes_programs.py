"""Random programs of dynamic-shape arithmetic: what `dynamic_shapes` draws and judges."""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch.export import Dim\n"
LARGEST = 3000  # elements of any value at the example's sizes


@dataclass
class Root:
    """One independent size. `high` None means unbounded; `low` and `high` are those that the declaration gives."""

    name: str
    example: int
    low: int
    high: int | None
    declared: str  # the declaration, or "" for an automatic dim, which is spelled where it is used


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _names_read(node: ast.AST) -> Iterator[str]:
    """The names whose elements an expression reads: x in x + 1, not in x.shape[0]."""
    if isinstance(node, ast.Attribute) and node.attr in ("shape", "size", "dim", "numel"):
        return
    if isinstance(node, ast.Name):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _names_read(child)


@dataclass
class Program:
    """`function` of tensors `a`, `b` …; each dim of an input is a number or (root, scale, offset)."""

    seed: int
    roots: list[Root] = field(default_factory=list)
    inputs: dict[str, list[Any]] = field(default_factory=dict)
    specs: dict[str, dict[int, str]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def construct(self, place: str) -> str:
        """What a line such as `<program 3>:7` does, in a word or two, so that reasons can be counted."""
        found = re.search(r"<program \d+>:(\d+)", place)
        line = int(found[1]) - len(HEAD.splitlines()) - 2 if found else -1
        return name_construct(self.lines[line]) if 0 <= line < len(self.lines) else "a size"

    def body(self) -> str:
        lines = [f"    {line}" for line in self.lines]
        return "\n".join([f"def function({', '.join(self.inputs)}):", *lines, f"    return {', '.join(self.outputs)},"])

    def reads_values_of(self, number: int, empty: Collection[str] = ()) -> bool:
        """Whether a result depends on the elements of what the statement at this line of the function computes.

        Sizes of it that others ask for do not count, nor does what reads it by way of names that have no elements.
        """
        (function,) = ast.parse(self.body()).body
        assert isinstance(function, ast.FunctionDef)
        live = set(self.outputs) - set(empty)
        for statement in reversed(function.body[:-1]):
            names = {target.id for target in ast.walk(statement) if _is_stored(target)}
            is_live = bool(names & live) or not isinstance(statement, ast.Assign)
            if statement.lineno == number:
                return is_live
            if is_live:
                live |= set(_names_read(statement)) - set(empty)
        return True

    def empty_names(self, given: Sequence[torch.Tensor]) -> set[str]:
        """Names of tensors without elements, at these sizes and whatever the values of indices; none if unknown."""
        space: dict[str, Any] = {}
        text = "\n".join([HEAD, *self.lines])
        try:
            with warnings.catch_warnings(), FakeTensorMode():
                warnings.simplefilter("ignore")
                space |= {name: torch.empty(t.shape, dtype=t.dtype) for name, t in zip(self.inputs, given, strict=True)}
                exec(text, space)
        except Exception:  # a statement that asks for values
            return set()
        return {name for name, value in space.items() if isinstance(value, torch.Tensor) and not value.numel()}

    def shapes(self) -> str:
        parts = [
            f'"{name}": {{{", ".join(f"{d}: {s}" for d, s in dims.items())}}}' for name, dims in self.specs.items()
        ]
        return f"{{{', '.join(parts)}}}"

    def __str__(self) -> str:
        examples = ", ".join(f"{name}: {self.shape(name, {})}" for name in self.inputs)
        return f"# seed {self.seed}: {examples}\n# dynamic_shapes = {self.shapes()}\n{self.body()}"

    def shape(self, name: str, sizes: dict[str, int]) -> tuple[int, ...]:
        known = {root.name: root.example for root in self.roots} | sizes
        return tuple(d if isinstance(d, int) else d[1] * known[d[0]] + d[2] for d in self.inputs[name])

    def function(self) -> Callable[..., Any]:
        space: dict[str, Any] = {}
        exec(compile(f"{HEAD}{self.body()}", f"<program {self.seed}>", "exec"), space)
        found: Callable[..., Any] = space["function"]
        return found

    def dynamic_shapes(self) -> Any:
        return eval(self.shapes(), {"Dim": Dim})

    def tensors(self, sizes: dict[str, int], seed: int = 0) -> list[torch.Tensor]:
        """Inputs in the midst of poison: a read outside them shows."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        made = []
        for name in self.inputs:
            shape = self.shape(name, sizes)
            count = 1
            for size in shape:
                count *= size
            around = torch.full((count + 128,), 1e30)
            around[64 : 64 + count] = torch.randn(count, generator=generator)
            made.append(around[64 : 64 + count].view(shape))
        return made


def name_construct(line: str) -> str:
    """The operator of a line, or what else of it looks at sizes."""
    if " if " in line:
        return "branch on a size"
    if re.search(r"\b(min|max)\(", line):
        return "min or max of sizes"
    called = [
        name for name in re.findall(r"\.(\w+)\(", line) if name not in ("reshape", "dim", "ones", "arange", "tensor")
    ]
    if called:
        return called[0]
    found = re.search(r"\.(reshape)\(|( @ )|(\[)|( [+*/] )", line)
    return {None: "a size", "[": "slice"}.get(found and next(filter(None, found.groups())), "") or found[0].strip(" .(")


class Drawing:
    """Draws one program; every line is run on the example, and at larger sizes, before it is kept.

    Declared ranges are honest as a rule: eager runs at every size in them.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.program = Program(seed)
        self.values: dict[str, torch.Tensor] = {}
        self.larger: list[dict[str, torch.Tensor]] = []  # the same at larger sizes

    def draw(self) -> Program:
        self._inputs()
        wanted = self.random.randint(1, 5)
        for _ in range(60):
            if len(self.program.lines) >= wanted:
                break
            self._line()
        # Whatever no other line uses: an error in a line whose value is not used is not the program's.
        text = " ".join(line.split(" = ", 1)[1] for line in self.program.lines)
        made = [name for name in self.values if name not in self.program.inputs]
        unused = [name for name in made if not re.search(rf"\b{name}\b", text)]
        self.program.outputs = unused or [f"{next(iter(self.values))} * 2"]
        if self.random.random() < 0.97:
            self._make_ranges_honest()
        return self.program

    # ------------------------------------------------------------------ inputs

    def _inputs(self) -> None:
        pick, program = self.random, self.program
        names = ["n", "m"][: pick.choice([1, 1, 2])]
        style = pick.choice(["name", "name", "Dim", "Dim", "auto"])
        for name in names:
            example = pick.choice([3, 4, 5, 5, 6, 8])
            if style == "name":
                program.roots.append(Root(name, example, 1, None, f'"{name}"'))
            elif style == "Dim":
                low, high = pick.choice([(0, None), (1, None), (2, None), (0, 9), (1, 12), (2, example), (3, 24)])
                program.roots.append(Root(name, example, low, high, _spell_dim(name, low, high)))
        for place in range(pick.choice([1, 2, 2])):
            argument = "ab"[place]
            shape: list[Any] = []
            specs: dict[int, str] = {}
            rank = pick.choice([1, 2, 2, 3])
            fixed = pick.randrange(rank) if rank > 1 else -1
            for d in range(rank):
                if d == fixed or (specs and pick.random() < 0.4):
                    shape.append(pick.choice([1, 2, 3, 4]))
                    continue
                if style == "auto":
                    root = Root(f"{argument}{d}", pick.choice([3, 5]), 1, None, "")
                    kind = pick.choice(["AUTO", "AUTO", "DYNAMIC", "DYNAMIC(min=2)", "AUTO(max=16)"])
                    root.low, root.high = (2 if "min" in kind else 1), (16 if "max" in kind else None)
                    program.roots.append(root)
                    specs[d] = f"Dim.{kind}"
                    shape.append((root.name, 1, 0))
                    continue
                root = pick.choice(program.roots)
                scale, offset = pick.choice([(1, 0)] * 5 + [(2, 0), (1, 1)])
                specs[d] = root.declared
                if (scale, offset) != (1, 0) and root.declared.startswith("Dim"):
                    specs[d] = f"2 * {root.declared}" if scale == 2 else f"{root.declared} + 1"
                elif (scale, offset) != (1, 0):
                    specs[d] = f'"2*{root.name}"' if scale == 2 else f'"{root.name} + 1"'
                shape.append((root.name, scale, offset))
            program.inputs[argument], program.specs[argument] = shape, specs
        used = {d[0] for shape in program.inputs.values() for d in shape if not isinstance(d, int)}
        program.roots = [root for root in program.roots if root.name in used]
        self.values = dict(zip(program.inputs, program.tensors({}), strict=True))
        for more in (4, 5):
            sizes = {}
            for place, root in enumerate(program.roots):
                # Automatic dims may be tied to each other: what is equal stays so.
                sizes[root.name] = root.example + more + 3 * place if style != "auto" else root.example * (more - 2) - 1
            self.larger.append(dict(zip(program.inputs, program.tensors(sizes), strict=True)))

    def _make_ranges_honest(self) -> None:
        """Bounds that the user gave exclude sizes at which eager fails."""
        function, roots = self.program.function(), [root for root in self.program.roots if root.low and root.declared]

        def works(sizes: dict[str, int]) -> bool:
            try:
                function(*self.program.tensors(sizes))
            except Exception:
                return False
            return True

        for name, dims in self.program.specs.items():  # of automatic dims, which may be tied to each other
            for d, text in dims.items():
                bound = re.search(r"=(\d+)", text) if text.startswith("Dim.") else None
                if bound and not works({root.name: int(bound[1]) for root in self.program.roots}):
                    dims[d] = text.partition("(")[0]
                    root = next(root for root in self.program.roots if root.name == f"{name}{d}")
                    root.low, root.high = 1, None
        for root in roots:
            if not root.declared.startswith("Dim"):
                continue
            others = [{}] + [{other.name: other.low} for other in roots if other is not root]
            low = root.example
            while low > root.low and all(works(other | {root.name: low - 1}) for other in others):
                low -= 1
            high = root.high
            while high is not None and high > root.example and not all(works(o | {root.name: high}) for o in others):
                high -= 1
            if low == high:
                low, high = root.low, root.high
            self._declare(root, low, high)

    def _declare(self, root: Root, low: int, high: int | None) -> None:
        before = root.declared
        root.low, root.high, root.declared = low, high, _spell_dim(root.name, low, high)
        for dims in self.program.specs.values():
            for d, text in dims.items():
                dims[d] = text.replace(before, root.declared)

    # ------------------------------------------------------------------ lines

    def _line(self) -> None:
        rule = self.random.choice(RULES)
        name = self.random.choice(list(self.values))
        text = rule(self, name)
        if text is None or (self._is_static(text) and self.random.random() < 0.9):
            return
        target = f"v{len(self.program.lines)}"
        try:
            found = eval(text, {"torch": torch, "F": F, **self.values})
            larger = [eval(text, {"torch": torch, "F": F, **values}) for values in self.larger]
        except Exception:
            return
        if isinstance(found, torch.Tensor) and found.numel() <= LARGEST and found.dtype == torch.float32:
            self.values[target] = found
            for values, other in zip(self.larger, larger, strict=True):
                values[target] = other
            self.program.lines.append(f"{target} = {text}")

    def _is_static(self, text: str) -> bool:
        """Whether a line takes another path, or has another number of parts, at other sizes."""
        condition = re.search(r" if (.*) else ", text)
        parts = re.fullmatch(r"(.*\.(?:split|chunk|unbind)\(.*\))\[-?\d+\]", text)
        asked = condition[1] if condition else f"len({parts[1]})" if parts else "0"
        try:
            return len({eval(asked, dict(values)) for values in (self.values, *self.larger)}) > 1
        except Exception:
            return False

    def dim(self, name: str) -> int:
        return self.random.randrange(max(self.values[name].dim(), 1))

    def number(self, low: int = -4, high: int = 6) -> int:
        return self.random.randint(low, high)

    def size(self, name: str) -> str:
        """An expression of a size, or a number."""
        of = self.random.choice(list(self.values))
        if not self.values[of].dim() or self.random.random() < 0.35:
            return str(self.number(1, 6))
        n = f"{of}.shape[{self.dim(of)}]"
        k = self.number(1, 4)
        forms = [n, n, f"{n} + {k}", f"{n} - {k}", f"{n} // {k}", f"{n} * 2", f"{n} % {k + 1}", f"({n} + 1) // 2",
                 f"min({n}, {k})", f"max({n}, {k})"]  # fmt: skip
        return self.random.choice(forms)

    def slice(self, name: str) -> str:
        parts = []
        for _ in range(2):
            kind = self.random.random()
            parts.append("" if kind < 0.35 else str(self.number()) if kind < 0.8 else self.size(name))
        step = self.random.choice(["", "", "", ":2", ":3"])
        return f"{parts[0]}:{parts[1]}{step}"


def _spell_dim(name: str, low: int, high: int | None) -> str:
    return f'Dim("{name}", min={low}' + (f", max={high})" if high is not None else ")")


def _slice(d: Drawing, x: str) -> str:
    return f"{x}[{':, ' * d.dim(x)}{d.slice(x)}]"


def _ranked(least: int, form: Callable[[Drawing, str], str]) -> Callable[[Drawing, str], str | None]:
    return lambda d, x: form(d, x) if d.values[x].dim() >= least else None


def _two(form: str) -> Callable[[Drawing, str], str]:
    return lambda d, x: form.format(x, d.random.choice(list(d.values)), d=d.dim(x), k=d.number(1, 3))


def _form(form: str) -> Callable[[Drawing, str], str]:
    """Fields: x, d a dim, s a size, i a number, p a positive number, q another."""
    return lambda d, x: form.format(
        x=x, d=d.dim(x), s=d.size(x), i=d.number(), p=d.number(1, 4), q=d.number(1, 3), t=d.size(x)
    )


_ROWS = "{x}.reshape(1, -1, {x}.shape[-1])"

RULES: list[Callable[[Drawing, str], str | None]] = [
    *[_ranked(1, _slice)] * 8,
    *map(
        lambda form: _ranked(1, _form(form)),
        [
            "{x}.narrow({d}, {q} - 1, {p})", "{x}.narrow({d}, 0, {s})", "{x}.select({d}, {i})",
            "{x}.split({p}, {d})[0]",
            "{x}.chunk(2, {d})[0]", "{x}.chunk({p}, {d})[-1]", "{x}.tensor_split({p}, {d})[-1]", "{x}.unbind({d})[0]",
            "{x}.tensor_split(({q}, {p} + {q}), {d})[1]", "torch.cat([{x}, {x}.flip({d})], {d})",
            "torch.stack([{x}, {x} * 2], {d})", "F.pad({x}, ({q}, {p}))", "F.pad({x}, (-{q}, {p}))",
            "{x}.unfold({d}, {p}, {q})", "{x}.roll({i}, {d})", "{x}.flip({d})", "{x}.reshape(-1)", "{x}.flatten()",
            "{x}.unsqueeze({d}).expand({x}.shape[:{d}] + ({s},) + {x}.shape[{d}:])",
            "{x}.repeat(*[1] * ({x}.dim() - 1), {p})", "{x}.cumsum({d})", "{x}.diff(dim={d})", "{x}.topk({p}, {d})[0]",
            "{x}.sort({d})[0]", "{x}.sum({d})", "{x}.mean({d})", "{x}.amax({d})", "{x}.var({d})", "{x}.std({d})",
            "{x}.softmax({d})", "{x} + torch.arange({x}.shape[-1])", "{x} * torch.ones({x}.shape[-1])",
            "torch.zeros({s}) + {x}.sum()", "torch.full(({s}, {p}), 2.0) * {x}.mean()", "torch.arange({s}) * {x}.sum()",
            "{x}.index_select({d}, torch.arange({p}) % {x}.shape[{d}])", "{x}[torch.arange({x}.shape[0]) // 2]",
            "{x}[torch.tensor([0, {q}])]", "F.avg_pool1d(" + _ROWS + ", {p})", "F.max_pool1d(" + _ROWS + ", {p})",
            "F.pad(" + _ROWS + ", ({q}, {p}), mode='reflect')", "F.pad(" + _ROWS + ", ({q}, {p}), mode='replicate')",
            "F.conv1d({x}.reshape(-1, 1, {x}.shape[-1]), torch.ones(2, 1, {p}))", "{x}.squeeze({d})",
            "F.conv1d({x}.reshape(-1, 1, {x}.shape[-1]), torch.ones(1, 1, {p}), padding={q}, stride={q})",
            "F.interpolate(" + _ROWS + ", scale_factor=2.0)", "F.interpolate(" + _ROWS + ", size={s}, mode='linear')",
            "{x} * ({s})", "{x} / ({s})", "{x}.sum() * max({s}, {t})", "{x} * 2 if {x}.shape[{d}] > {q} else {x} - 1",
            "{x}.movedim({d}, 0)", "{x}.unflatten({d}, (-1, {q}))", "{x}.reshape({x}.shape[0], -1)", "{x}.tril()",
            "{x}.index_fill({d}, torch.tensor([0]), 3.0)", "{x}.logsumexp({d})", "{x}.cummax({d})[0]", "{x}.prod({d})",
            "torch.where({x} > 0, {x}, torch.zeros({x}.shape[-1]))", "{x}.slice_scatter({x}[:{p}] * 0, 0, 0, {p})",
        ],
    ),
    *map(
        lambda form: _ranked(1, _two(form)),
        ["{0} + {1}", "{0} + {1}", "{0} * {1}", "torch.cat([{0}, {1}], {d})", "torch.cat([{0}, {1}], {d})",
         "torch.stack([{0}, {1}], {d})", "{0} @ {1}", "{0}[:{k}] + {1}[:{k}]", "{0}[-{k}:] * {1}[-{k}:]",
         "torch.maximum({0}, {1})", "{0}[..., None] * {1}", "{0}.expand_as({1})", "torch.where({0} > 0, {0}, {1})"],
    ),
    *map(
        lambda form: _ranked(2, _form(form)),
        ["{x} @ {x}.transpose(-1, -2)", "torch.einsum('...ij,...kj->...ik', {x}, {x})", "{x}.transpose(0, 1)",
         "{x}.flatten(0, 1)", "{x}.reshape(-1, {x}.shape[-1])", "{x}.reshape(-1, {x}.shape[0])", "{x}.diagonal()"],
    ),
]  # fmt: skip
