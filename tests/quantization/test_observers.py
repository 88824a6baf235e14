"""Observers find good ranges, and what they learn is part of a module's state."""

from __future__ import annotations

import pytest
import torch

from ingot.quantization.observers import OBSERVERS, find_all_parameters, observer_for
from ingot.quantization.qscheme import (
    Granularity,
    Scheme,
    dequantize,
    parameters_of,
    quantize,
    quantize_rows,
    range_of,
    signed_scheme,
    simulate,
    unsigned_scheme,
)

G = torch.Generator().manual_seed(0)
DATA = {
    "relu": torch.randn(20000, generator=G).relu(),
    "shifted": torch.randn(20000, generator=G) + 0.3,
    "outlier": torch.cat([torch.randn(20000, generator=G), torch.tensor([40.0, -3.0])]),
    "heavy": torch.randn(20000, generator=G) ** 3,
    "constant": torch.full((10,), 2.5),
    "zeros": torch.zeros(10),
}
SCHEMES = {"uint8": unsigned_scheme(), "int8": Scheme(torch.int8, -128, 127, symmetric=True)}


def error(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, scheme: Scheme) -> float:
    return float((simulate(x, parameters_of(low, high, scheme), scheme) - x).square().mean())


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())
@pytest.mark.parametrize("x", DATA.values(), ids=DATA.keys())
def test_a_histogram_is_as_good_as_trying_all(x: torch.Tensor, scheme: Scheme) -> None:
    observer = observer_for(Scheme(**{**{n: getattr(scheme, n) for n in scheme.__slots__}, "observer": "histogram"}))
    for part in x.split(7000):
        observer.observe(part)
    tries = [error(x, x.min() * a / 20, x.max() * b / 20, scheme) for a in range(2, 21) for b in range(2, 21)]
    assert error(x, *observer.range(), scheme) <= 1.03 * min(tries) + 1e-12


@pytest.mark.parametrize("name", OBSERVERS)
def test_state_and_order(name: str) -> None:
    scheme = Scheme(torch.uint8, 0, 255, observer=name)
    one, other = observer_for(scheme), observer_for(scheme)
    assert not one.seen
    one.observe(torch.empty(0))
    assert not one.seen
    for part in DATA["shifted"].split(5000):
        one.observe(part)
    other.load_state_dict(one.state_dict())
    assert other.seen and all(torch.equal(a, b) for a, b in zip(one.range(), other.range(), strict=True))


def test_moving_average_by_hand() -> None:
    observer = observer_for(Scheme(torch.uint8, 0, 255, observer="moving_average"))
    observer.observe(torch.tensor([-1.0, 2.0]))
    observer.observe(torch.tensor([-3.0, 6.0]))
    assert [float(v) for v in observer.range()] == pytest.approx([-1.02, 2.04])


@pytest.mark.parametrize("granularity", ["tensor", "channel", "group"])
def test_integers_are_those_of_the_formula(granularity: str) -> None:
    scheme = signed_scheme(granularity=granularity, axis=0, group_size=4 if granularity == "group" else 0)
    x = torch.randn(6, 8, generator=G)
    parameters = parameters_of(*range_of(x, scheme), scheme)
    numbers = quantize(x, parameters, scheme)
    scale = {
        "tensor": x.abs().max().expand(6, 8) / 127,
        "channel": (x.abs().amax(1, keepdim=True) / 127).expand(6, 8),
        "group": (x.view(6, 2, 4).abs().amax(2) / 127).repeat_interleave(4, 1),
    }[granularity]
    assert torch.equal(numbers, torch.round(x * (1 / scale)).clamp(-127, 127).to(torch.int8))
    assert torch.equal(dequantize(numbers, parameters, scheme), numbers.float() * scale)
    assert torch.equal(simulate(x, parameters, scheme), numbers.float() * scale)


def test_gradients_pass_where_the_value_is_in_range() -> None:
    scheme = unsigned_scheme()
    x = torch.tensor([-1.0, 0.1, 0.5, 3.0], requires_grad=True)
    simulate(x, parameters_of(torch.tensor(0.0), torch.tensor(1.0), scheme), scheme).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_a_scheme_must_hold_its_numbers() -> None:
    with pytest.raises(ValueError, match="does not hold"):
        Scheme(torch.int8, 0, 255)
    with pytest.raises(ValueError, match="group_size"):
        signed_scheme(granularity="group")


def test_all_at_once_is_one_by_one() -> None:
    kinds = [Scheme(torch.uint8, 0, 255, observer=name) for name in OBSERVERS]
    observers = [observer_for(kind) for kind in [*kinds, Scheme(torch.int8, -128, 127, symmetric=True)] for _ in DATA]
    for observer, x in zip(observers, [*DATA.values()] * 5, strict=True):
        observer.observe(x)
    for observer, found in zip(observers, find_all_parameters(observers), strict=True):
        alone = observer.parameters_now()
        assert torch.equal(found.scale, alone.scale) and torch.equal(found.zero_point, alone.zero_point)


@pytest.mark.parametrize("shape", [(7, 12), (5, 3, 3, 4), (1, 4), (6, 1, 4)], ids=str)
@pytest.mark.parametrize("granularity", ["channel", "group"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_row_by_row_is_the_tensor_at_once(
    shape: tuple[int, ...], granularity: Granularity, symmetric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.passes.fold_batch_norm._AT_ONCE", 24)  # a row, or two
    scheme = Scheme(torch.int8, -127, 127, symmetric, granularity, group_size=4 if granularity == "group" else 0)
    x = torch.randn(shape, generator=G)
    numbers, parameters = quantize_rows(x, scheme)
    expected = parameters_of(*range_of(x, scheme), scheme)
    assert torch.equal(parameters.scale, expected.scale) and torch.equal(parameters.zero_point, expected.zero_point)
    assert torch.equal(numbers, quantize(x, expected, scheme))
    # times factors of either sign and of zero, as if the product had been made
    factors = torch.randn(shape[0], generator=G, dtype=torch.float64)
    factors[0] = 0.0
    product = (x.double() * factors.view(-1, *[1] * (x.dim() - 1))).float()
    numbers, parameters = quantize_rows(x, scheme, factors)
    expected = parameters_of(*range_of(product, scheme), scheme)
    assert torch.equal(parameters.scale, expected.scale) and torch.equal(parameters.zero_point, expected.zero_point)
    assert torch.equal(numbers, quantize(product, expected, scheme))  # no value lies between two numbers
