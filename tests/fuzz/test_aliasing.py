"""A few programs of the generator, and that its oracle can say that a result is wrong."""

from __future__ import annotations

import torch

from tests.fuzz import aliasing


def test_fixed_seeds() -> None:
    verdicts = dict(aliasing.check(list(range(16))))
    assert len(verdicts) == 16
    wrong = [verdict.reason for verdict in verdicts.values() if verdict.kind == "wrong"]
    assert not wrong, "\n\n".join(wrong)
    assert sum(verdict.kind == "refused" for verdict in verdicts.values()) <= 2


def test_programs_follow_from_the_seed() -> None:
    assert [str(aliasing.make(seed)) for seed in range(20)] == [str(aliasing.make(seed)) for seed in range(20)]


def test_the_oracle_sees_a_lost_write() -> None:
    program = aliasing.Program(
        [aliasing.Tensor((2, 3), "plain", torch.float32, seed) for seed in (1, 2)],
        aliasing.Tensor((2,), "plain", torch.float32, 3),
        ["v0.add_(1)", "return (v1 * 1, b * 1,)"],
    )
    lost = aliasing.Program(program.arguments, program.buffer, program.lines[1:])
    want = aliasing.expect(program)
    assert not aliasing.compare(aliasing.expect(program), want)
    assert "value 2 of call 0" in aliasing.compare(aliasing.expect(lost), want)


def test_signs_and_nans_are_compared() -> None:
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert not aliasing.compare([[nan]], [[-nan]])
    assert aliasing.compare([[zero]], [[-zero]])
    assert aliasing.compare([[zero]], [[nan]])


def test_a_limit_that_is_nan_gives_nan() -> None:
    program = aliasing.Program(
        [aliasing.Tensor((2, 3), "plain", torch.float32, seed) for seed in (1, 2)],
        aliasing.Tensor((2,), "plain", torch.float32, 3),
        ["b.clamp_(max=float('nan'))", "return (v1 * 1, b * 1,)"],
    )
    eager = aliasing.expect(program)
    want = aliasing.expect_of_native(program, eager)
    assert want[0][1].isnan().all()
    assert bool(aliasing.compare(want, eager)) is aliasing.clamp_ignores_nan()
    other = aliasing.Program(program.arguments, program.buffer, ["b.clamp_(max=2.0)", program.lines[1]])
    assert aliasing.expect_of_native(other, eager) is eager
