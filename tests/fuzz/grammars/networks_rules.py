"""What networks are made of: one rule per layer, block or form, each drawing a few lines of a Draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.grammars.networks_drawing import Draft, Rejected, Value

Rule = Callable[[Draft], Any]
RULES: list[tuple[float, Rule]] = []


def draws(weight: float = 1.0) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.append((weight, rule))
        return rule

    return register


# ---------------------------------------------------------------------- layers by kind


def convolution(d: Draft, x: Value, outs: int | None = None, same: bool = False, kernel: int = 0) -> str:
    """The text of a convolution that takes x; with `same`, one that keeps its sizes."""
    rank = x.at[0].dim() - 2
    ins = x.shape[1]
    outs = outs or d.channels()
    kernel = kernel or d.choose(1, 1, 3, 3, 3, 5)
    dilation = d.choose(1, 1, 1, 2)
    stride = 1 if same else d.choose(1, 1, 1, 2)
    padding = kernel // 2 * dilation if same else d.choose(0, kernel // 2 * dilation, kernel // 2 * dilation)
    fitting = [g for g in (1, 2, 4, 8) if ins % g == outs % g == 0]
    groups = 1 if d.random.random() < 0.75 else d.random.choice(fitting)
    options = [f"{ins}", f"{outs}", f"{kernel}"]
    named = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    options += [f"{name}={value}" for name, value in named.items() if value != (0 if name == "padding" else 1)]
    if d.random.random() < 0.3:
        options.append("bias=False")
    return f"nn.Conv{rank}d({', '.join(options)})"


def depthwise(d: Draft, x: Value) -> str:
    kernel = d.choose(3, 3, 5)
    return f"nn.Conv2d({x.shape[1]}, {x.shape[1]}, {kernel}, padding={kernel // 2}, groups={x.shape[1]})"


def same_layer(d: Draft, x: Value) -> Value:
    """A layer that keeps the shape of what it takes."""
    c = x.shape[1]
    if x.kind in ("vector", "sequence"):
        width = x.shape[-1]
        return d.call(f"nn.Linear({width}, {width}{d.choose('', ', bias=False')})", x)
    if x.kind == "image" and d.random.random() < 0.25:
        return d.call(depthwise(d, x), x)
    text = convolution(d, x, c, same=True)
    if x.kind == "image" and d.random.random() < 0.4:
        text = f"nn.Sequential({text}, nn.BatchNorm2d({c}){d.choose('', ', nn.ReLU()', ', nn.SiLU()')})"
    return d.call(text, x)


SPATIAL = ("image", "image", "image", "signal", "volume")
ALL = ("image", "image", "image", "sequence", "sequence", "vector", "vector", "signal", "volume")


@draws(4)
def plain_convolution(d: Draft) -> None:
    x = d.pick(d.random.choice(SPATIAL))
    d.call(convolution(d, x), x)


@draws(3)
def linear(d: Draft) -> None:
    x = d.pick(d.choose("sequence", "vector"))
    d.call(f"nn.Linear({x.shape[-1]}, {d.channels()})", x)


@draws(4)
def residual(d: Draft) -> None:
    """A value, a layer or two of it, and the value again: before, between or after an activation."""
    x = d.pick(d.random.choice(ALL))
    y = same_layer(d, x) if d.random.random() < 0.7 else x
    y = d.line(d.activation(y.name), y.kind) if d.random.random() < 0.3 else y
    z = same_layer(d, y)
    z = d.line(d.activation(z.name), z.kind) if d.random.random() < 0.3 else z
    total = d.line(f"{z.name} {d.choose('+', '+', '*', '-')} {d.choose(y.name, y.name, x.name)}", x.kind)
    if d.random.random() < 0.5:
        total = d.line(d.activation(total.name), total.kind)
    if d.random.random() < 0.6:
        same_layer(d, total)


@draws(2)
def branches_that_meet(d: Draft) -> None:
    """Two layers of different values, or of one, whose results are joined."""
    x = d.pick(d.random.choice(ALL))
    others = d.like(x)
    z = d.random.choice(others) if others and d.random.random() < 0.6 else x
    a, b = same_layer(d, x), same_layer(d, z)
    joined = d.line(f"{a.name} {d.choose('+', '+', '*')} {b.name}", x.kind)
    if d.random.random() < 0.5:
        joined = d.line(d.activation(joined.name), x.kind)
    if d.random.random() < 0.5:
        same_layer(d, joined)


@draws(2)
def shortcut(d: Draft) -> None:
    """A residual block that changes its size: the sum of two layers, each with weights of its own."""
    x = d.pick(d.choose("image", "sequence", "vector"))
    outs = d.channels()
    if x.kind == "image":
        stride = d.choose(1, 2)
        deep = d.call(f"nn.Conv2d({x.shape[1]}, {outs}, 3, stride={stride}, padding=1)", x)
        short = d.call(f"nn.Conv2d({x.shape[1]}, {outs}, 1, stride={stride})", x)
    else:
        inner = d.call(f"nn.Linear({x.shape[-1]}, {d.channels()})", x)
        inner = d.line(d.activation(inner.name), x.kind)
        deep = d.call(f"nn.Linear({inner.shape[-1]}, {outs})", inner)
        short = d.call(f"nn.Linear({x.shape[-1]}, {outs})", x)
    total = d.line(d.activation(f"({deep.name} + {short.name})"), x.kind)
    same_layer(d, total)


@draws(2)
def activation(d: Draft) -> None:
    x = d.pick(d.random.choice(ALL))
    d.line(d.activation(x.name), x.kind)


@draws(2)
def combine(d: Draft) -> None:
    """Two values of one shape, however far apart."""
    x = d.pick(d.random.choice(ALL))
    others = d.like(x)
    if not others:
        raise Rejected("nothing has this shape")
    y = d.random.choice(others)
    forms = ("{0} + {1}", "{0} * {1}", "{0} - {1}", "torch.maximum({0}, {1})", "torch.sigmoid({0}) * {1}")
    forms += ("torch.where({0} > 0, {0}, {0} * 0.1) + {1}", "torch.lerp({0}, {1}, 0.3)", "F.silu({0}) * {1}")
    d.line(d.random.choice(forms).format(x.name, y.name), x.kind)


@draws(1.5)
def concatenate(d: Draft) -> None:
    x = d.pick(d.random.choice(ALL))
    parts = [x, *(d.random.sample(d.like(x), 1) if d.like(x) else [])]
    dim = 1 if x.kind not in ("sequence", "vector") else -1
    made = d.line(f"torch.cat([{', '.join(v.name for v in parts)}, {x.name} * 2], {dim})", x.kind)
    if made.shape[dim] > 96:
        raise Rejected("too wide")
    if d.random.random() < 0.6:
        layer_of = same_layer if d.random.random() < 0.5 else None
        if layer_of:
            layer_of(d, made)


@draws(1)
def chunks(d: Draft) -> None:
    """A value cut in two, of which one part gates the other."""
    x = d.pick(d.random.choice(ALL))
    dim = 1 if x.kind not in ("sequence", "vector") else -1
    if x.shape[dim] % 2:
        raise Rejected("odd")
    a, b = (d.line(f"{x.name}.chunk(2, {dim})[{k}]", x.kind) for k in range(2))
    d.line(f"{d.activation(a.name)} * {b.name}", x.kind)


@draws(2.5)
def normalize(d: Draft) -> None:
    x = d.pick(d.random.choice(ALL))
    c = x.shape[1]
    if x.kind in ("sequence", "vector"):
        w = x.shape[-1]
        if d.random.random() < 0.7:
            d.call(f"nn.LayerNorm({w})", x)
        else:
            d.line(f"{x.name} * torch.rsqrt({x.name}.pow(2).mean(-1, keepdim=True) + 1e-3)", x.kind)
        return
    rank = x.at[0].dim() - 2
    groups = d.random.choice([g for g in (1, 2, 3, 4, 8, 17) if c % g == 0])
    texts = [f"nn.BatchNorm{rank}d({c})", f"nn.GroupNorm({groups}, {c})", f"nn.InstanceNorm{rank}d({c}, affine=True)"]
    if x.kind == "image" and d.random.random() < 0.3:
        moved = d.line(f"{x.name}.permute(0, 2, 3, 1)")
        made = d.line(f"F.layer_norm({moved.name}, ({c},))")
        d.line(f"{made.name}.permute(0, 3, 1, 2){d.choose('', '.contiguous()')}", x.kind)
        return
    d.call(d.random.choice(texts), x)


@draws(1.5)
def pool(d: Draft) -> None:
    x = d.pick(d.random.choice(SPATIAL))
    rank = x.at[0].dim() - 2
    forms = (
        f"F.max_pool{rank}d({{}}, 2)",
        f"F.max_pool{rank}d({{}}, 3, stride=1, padding=1)",
        f"F.max_pool{rank}d({{}}, 3, stride=2, padding=1)",
        f"F.avg_pool{rank}d({{}}, 2)",
        f"F.avg_pool{rank}d({{}}, 3, stride=1, padding=1)",
        f"F.avg_pool{rank}d({{}} + 1, 3, stride=2, padding=1, count_include_pad=False)",
        f"F.adaptive_avg_pool{rank}d({{}}, 2)",
    )
    d.line(d.random.choice(forms).format(x.name), x.kind)


@draws(1.2)
def resample(d: Draft) -> None:
    x = d.pick("image")
    c = x.shape[1]
    forms = ["F.interpolate({0}, scale_factor=2)", "F.interpolate({0}, scale_factor=2, mode='bilinear')"]
    forms += ["F.pad({0}, (1, 2, 0, 1))", "F.pad({0}, (1, 1, 1, 1), mode='reflect')", "{0}.flip(3)"]
    forms += ["F.pixel_shuffle({0}, 2)"] * 2 if c % 4 == 0 else []
    forms += ["F.pixel_unshuffle({0}, 2)", "{0}.roll(1, 2)"]
    made = d.line(d.random.choice(forms).format(x.name), "image")
    if made.shape[1] > 64:
        made = d.call(f"nn.Conv2d({made.shape[1]}, {d.channels()}, 1)", made)


@draws(1)
def transposed(d: Draft) -> None:
    x = d.pick(d.choose("image", "image", "signal"))
    rank = x.at[0].dim() - 2
    kernel, stride = d.choose((2, 2), (3, 1), (3, 2), (4, 2))
    padding = d.choose(0, 1) if kernel > 2 else 0
    d.call(f"nn.ConvTranspose{rank}d({x.shape[1]}, {d.channels()}, {kernel}, stride={stride}, padding={padding})", x)


# ---------------------------------------------------------------------- blocks


@draws(2)
def squeeze_excite(d: Draft) -> None:
    x = d.pick("image")
    c, inner = x.shape[1], d.choose(1, 4, 8, 16)
    mean = d.line(d.choose(f"{x.name}.mean((2, 3), keepdim=True)", f"F.adaptive_avg_pool2d({x.name}, 1)"))
    down, up = d.layer(f"nn.Conv2d({c}, {inner}, 1)"), d.layer(f"nn.Conv2d({inner}, {c}, 1)")
    gate = d.line(f"torch.sigmoid({up}({d.activation(f'{down}({mean.name})')}))")
    d.line(f"{x.name} * {gate.name}", "image")


@draws(3)
def inverted_residual(d: Draft) -> None:
    """Widens, convolves channel by channel, narrows; with squeeze-excite or fused, and a residual where it fits."""
    x = d.pick("image")
    c, outs = x.shape[1], d.random.choice([x.shape[1], x.shape[1], d.channels()])
    inner = c * d.choose(2, 3, 4)
    if inner > 192:
        raise Rejected("too wide")
    stride = 1 if outs == c else d.choose(1, 2)
    act = d.choose("nn.ReLU6()", "nn.SiLU()", "nn.Hardswish()")

    def block(text: str, width: int, act: str = act) -> str:
        return f"nn.Sequential({text}, nn.BatchNorm2d({width}){', ' + act if act else ''})"

    if d.random.random() < 0.35:
        y = d.call(block(f"nn.Conv2d({c}, {inner}, 3, stride={stride}, padding=1, bias=False)", inner), x)
    else:
        y = d.call(block(f"nn.Conv2d({c}, {inner}, 1, bias=False)", inner), x)
        text = f"nn.Conv2d({inner}, {inner}, 3, stride={stride}, padding=1, groups={inner}, bias=False)"
        y = d.call(block(text, inner), y)
        if d.random.random() < 0.4:
            down, up = d.layer(f"nn.Conv2d({inner}, 8, 1)"), d.layer(f"nn.Conv2d(8, {inner}, 1)")
            y = d.line(f"{y.name} * torch.sigmoid({up}(F.silu({down}({y.name}.mean((2, 3), keepdim=True)))))", "image")
    y = d.call(block(f"nn.Conv2d({inner}, {outs}, 1, bias=False)", outs, ""), y)
    if outs == c and stride == 1:
        d.line(f"{x.name} + {y.name}", "image")


@draws(3)
def attention(d: Draft) -> None:
    """Self- or cross-attention: torch's own, or by hand, with a projection behind it and a residual."""
    x = d.pick("sequence")
    others = [v for v in d.values if v.kind == "sequence"]
    y = x if d.random.random() < 0.7 else d.random.choice(others)
    heads = d.choose(1, 2, 4)
    depth = d.choose(4, 8, 16)
    inner = heads * depth
    named = []
    for source in (x, y, y):
        p = d.call(f"nn.Linear({source.shape[-1]}, {inner}{d.choose('', ', bias=False')})", source)
        named.append(d.line(f"{p.name}.unflatten(-1, ({heads}, {depth})).transpose(1, 2)").name)
    q, k, v = named
    causal = d.random.random() < 0.3
    if d.random.random() < 0.6:
        made = d.line(f"F.scaled_dot_product_attention({q}, {k}, {v}{', is_causal=True' if causal else ''})")
    else:
        score = d.line(f"{q} @ {k}.transpose(-2, -1) * {depth**-0.5:.4f}")
        if causal and x is y:
            score = d.line(f"{score.name}.masked_fill(torch.ones_like({score.name}).triu(1) > 0, -1e9)")
        weights = d.line(f"torch.softmax({score.name}, -1)")
        made = d.line(f"{weights.name} @ {v}")
    out = d.line(f"{made.name}.transpose(1, 2).flatten(2)", "sequence")
    out = d.call(f"nn.Linear({inner}, {x.shape[-1]})", out)
    d.line(f"{x.name} + {out.name}", "sequence")


@draws(2)
def feed_forward(d: Draft) -> None:
    x = d.pick(d.choose("sequence", "vector"))
    w, inner = x.shape[-1], d.choose(16, 32, 48, 64)
    y = d.call(f"nn.LayerNorm({w})", x) if d.random.random() < 0.5 else x
    up = d.call(f"nn.Linear({w}, {inner})", y)
    if d.random.random() < 0.5:
        gate = d.call(f"nn.Linear({w}, {inner}{d.choose('', ', bias=False')})", y)
        up = d.line(f"{d.activation(gate.name)} * {up.name}", x.kind)
    else:
        up = d.line(d.activation(up.name), x.kind)
    down = d.call(f"nn.Sequential(nn.Dropout(0.1), nn.Linear({inner}, {w}))", up)
    d.line(f"{d.choose(x.name, y.name)} + {down.name}", x.kind)


@draws(1)
def recurrent(d: Draft) -> None:
    x = d.pick("sequence")
    width = d.choose(3, 8, 17)
    both = d.random.random() < 0.3
    name = d.choose("LSTM", "GRU")
    text = f"nn.{name}({x.shape[-1]}, {width}, batch_first=True{', bidirectional=True' if both else ''})"
    layer = d.layer(text)
    d.line(f"{layer}({x.name})[0]", "sequence")


@draws(1.5)
def products(d: Draft) -> None:
    """Products and sums of activations with activations."""
    x = d.pick(d.choose("sequence", "vector", "sequence"))
    if x.kind == "vector":
        d.line(f"torch.einsum('na,nb->nab', {x.name}, {x.name}).mean(1)", "vector")
    elif d.random.random() < 0.5:
        score = d.line(f"torch.einsum('nid,njd->nij', {x.name}, {x.name}) / {x.shape[-1]}")
        d.line(f"{score.name} @ {x.name} * 0.1", "sequence")
    else:
        weights = d.line(f"torch.softmax({x.name}.transpose(1, 2) @ {x.name} * 0.1, {d.choose(1, 2)})")
        d.line(f"({weights.name} * {x.name}.mean(1).unsqueeze(1)).sum(-1)", "vector")


@draws(1.5)
def reduce(d: Draft) -> None:
    """Softmax and other reductions over any dim."""
    x = d.pick(d.random.choice(ALL))
    dim = d.random.randrange(1, x.at[0].dim())
    forms = (
        "torch.softmax({0}, {1})",
        "{0} - {0}.mean({1}, keepdim=True)",
        "{0} / (1 + {0}.abs().sum({1}, keepdim=True))",
    )
    forms += ("torch.log_softmax({0}, {1})", "{0} - {0}.amax({1}, keepdim=True)", "torch.cumsum({0}, {1}) * 0.1")
    forms += ("{0} + torch.logsumexp({0}, {1}, keepdim=True)", "{0} * {0}.var({1}, correction=0, keepdim=True)")
    d.line(d.random.choice(forms).format(x.name, dim), x.kind)


@draws(0.8)
def saturated_softmax(d: Draft) -> None:
    """Scores so large that recomputing them must give the same bits.

    Of an input, whose bits are certain: one rounding of a computed value changes the result, in eager as well.
    """
    x = given(d)
    dim = d.random.randrange(1, x.at[0].dim())
    d.line(f"torch.softmax({x.name} * {d.choose('1e9', '3e10')} * {x.name}, {dim})", x.kind)


def given(d: Draft) -> Value:
    """An input of floats."""
    return d.random.choice([v for v in d.values if v.name.startswith("x") and v.at[0].is_floating_point()])


@draws(1.2)
def steps_of_sign(d: Draft) -> None:
    """Floor division, remainder and rounding, of numbers that are far from their jumps: an input is exact."""
    x = given(d)
    form = d.choose(
        "({0}.sign() * 2.6) // 0.7",
        "({0}.sign() * 2.6) // 0.7",
        "torch.round({0}.sign() * 1.3)",
        "torch.remainder({0}.sign() * 2.6, 0.7)",
    )
    d.line(f"{x.name} + 0.1 * ({form.format(x.name)})", x.kind)


@draws(1.5)
def thresholds(d: Draft) -> None:
    """An input beside a number: inputs are tenths, so that a number is often met exactly."""
    x = given(d)
    number = d.choose(0.1, 0.3, -0.7)
    forms = ("torch.where({0} == {1}, {0} + 1, {0})", "torch.where({0} > {1}, {0}, -{0})", "F.hardshrink({0}, 0.3)")
    forms += ("{0}.masked_fill({0} >= {1}, {1})", "{0}.clamp(max={1})", "({0} < {1}).to({0}.dtype) + {0}")
    d.line(d.random.choice(forms).format(x.name, number), x.kind)


@draws(0.4)
def slices(d: Draft) -> None:
    """A part of a sequence, which a short one may not have."""
    x = d.pick("sequence")
    form = d.choose("{0}[:, :2]", "{0}[:, -2:]", "{0}[:, 1:3]", "{0}[:, 1:]", "{0}[:, :-1]", "{0}[:, ::2]")
    d.line(f"{form.format(x.name)}.sum(1)", "vector")


# ---------------------------------------------------------------------- from kind to kind


@draws(2)
def change_kind(d: Draft) -> None:
    x = d.pick(d.random.choice(ALL))
    if x.kind == "image":
        form, kind = d.choose(
            ("{0}.flatten(2).transpose(1, 2)", "sequence"),
            ("{0}.permute(0, 2, 3, 1).flatten(1, 2)", "sequence"),
            ("{0}.mean((2, 3))", "vector"),
            ("F.adaptive_avg_pool2d({0}, 1).flatten(1)", "vector"),
            ("{0}.mean(2)", "signal"),
            ("{0}.unsqueeze(2)", "volume"),
            ("torch.stack([{0}, {0} * 0.5, -{0}], 2)", "volume"),
        )
    elif x.kind == "sequence":
        form, kind = d.choose(
            ("{0}.mean(1)", "vector"),
            ("{0}[:, -1]", "vector"),
            ("{0}.amax(1)", "vector"),
            ("{0}.transpose(1, 2)", "signal"),
            ("{0}.transpose(1, 2).unsqueeze(2)", "image"),
        )
    elif x.kind == "vector":
        form, kind = d.choose(
            ("{0}[:, None] * torch.tensor([[1.0], [0.5], [-1.0]], dtype={0}.dtype)", "sequence"),
            ("{0}[:, :, None, None].expand(-1, -1, 4, 5)", "image"),
            ("torch.stack([{0}, {0} + 1], 2)", "signal"),
        )
    elif x.kind == "signal":
        form, kind = d.choose(
            ("{0}.transpose(1, 2)", "sequence"), ("{0}.mean(2)", "vector"), ("{0}.unsqueeze(3)", "image")
        )
    else:
        form, kind = d.choose(("{0}.mean(2)", "image"), ("{0}.amax((2, 3, 4))", "vector"), ("{0}[:, :, 0]", "image"))
    d.line(form.format(x.name), kind)
