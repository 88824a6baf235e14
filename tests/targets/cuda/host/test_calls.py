"""Whole models through the real host text and the emulated driver: calls, sizes, state, threads, control flow."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver
from tests.targets.cuda.host.models import Counter, Gather, Several, Writer


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_calls_give_what_eager_gives_and_later_ones_only_update_a_graph(driver: EmulatedDriver) -> None:
    model, args = Several().eval(), (torch.randn(4, 5), torch.randn(3, 7))
    compiled = ingot.compile(model, args, target=EMULATED, disable_passes={"map_groups"})
    assert compiled.kernels == 4 and set(compiled.libraries) == {"x86-64", "sm_90a", "sm_80"}
    before = {
        name: driver.calls(name) for name in ("cuGraphLaunch", "cuGraphCreate", "cuLaunchKernel", "cuMemAlloc_v2")
    }
    kept = []
    for _ in range(3):
        args = (torch.randn(4, 5), torch.randn(3, 7))
        results = compiled(*args)
        same(results, model(*args))
        kept.append((results, [result.clone() for result in results]))
    for results, copies in kept:
        same(list(results), copies)  # results are the caller's: no later call overwrites them
    made = {name: driver.calls(name) - count for name, count in before.items()}
    assert made == {"cuGraphLaunch": 3, "cuGraphCreate": 1, "cuLaunchKernel": 0, "cuMemAlloc_v2": 2}  # weights, staging
    compiled.close()


def test_arrays_of_numpy_in_and_out(driver: EmulatedDriver) -> None:
    model = Several().eval()
    x, y = np.random.randn(4, 5).astype(np.float32), np.random.randn(3, 7).astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(x), torch.from_numpy(y))
    compiled = ingot.compile(model, (torch.from_numpy(x), torch.from_numpy(y)), target=EMULATED)
    results = compiled(np.asfortranarray(x), y[::-1][::-1])
    assert all(isinstance(result, np.ndarray) for result in results)
    for found, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())
    compiled.close()


def test_sizes_differ_from_call_to_call(driver: EmulatedDriver) -> None:
    model = Several().eval()
    shapes = {"x": {0: torch.export.Dim("rows", min=0)}, "y": {1: "columns"}}
    compiled = ingot.compile(model, (torch.randn(4, 5), torch.randn(3, 7)), dynamic_shapes=shapes, target=EMULATED)
    graphs, launches = driver.calls("cuGraphCreate"), driver.calls("cuGraphLaunch")
    for rows, columns in [(4, 7), (1, 1), (0, 1), (300, 70), (4, 7), (4, 7), (300, 70), (2, 9)]:
        args = (torch.randn(rows, 5), torch.randn(3, columns))
        same(compiled(*args), model(*args))
    # A graph is worth its making where grids come again, whatever the sizes: (4, 7), (1, 1) and (2, 9) share one. The
    # first call of each kind launches kernel by kernel.
    assert driver.calls("cuGraphCreate") - graphs == 2 and driver.calls("cuGraphLaunch") - launches == 5
    compiled.close()


def test_more_sizes_than_graphs_are_kept(driver: EmulatedDriver) -> None:
    compiled = ingot.compile(
        lambda x: (x + 1, x.T * 2), (torch.randn(4, 5),), dynamic_shapes=({0: "rows"},), target=EMULATED
    )
    for rows in [*range(2, 14), *range(2, 14), *range(2, 14)]:
        x = torch.randn(rows, 5)
        same(compiled(x), (x + 1, x.T * 2))
    compiled.close()


def test_state_lives_on_the_device(driver: EmulatedDriver) -> None:
    model, x = Counter().eval(), torch.randn(3, 5)
    compiled, other = (ingot.compile(model, (x,), target=EMULATED) for _ in range(2))
    for turn in range(3):
        same(compiled(x), x * (turn + 1))
    same(other(x), x)
    compiled.close()
    other.close()


def test_inputs_are_written_to(driver: EmulatedDriver) -> None:
    compiled = ingot.compile(Writer(), (torch.randn(4, 3), torch.randn(2, 3)), target=EMULATED)
    x, y = torch.randn(4, 3), torch.randn(2, 3)
    before = x.clone()
    same(compiled(x, y), before[:2] * 2 + y)
    same(x, before * 2)
    strided = torch.randn(3, 4).T  # is copied, and copied back
    before = strided.clone()
    same(compiled(strided, y), before[:2] * 2 + y)
    same(strided, before * 2)
    array = np.ones((4, 3), np.float32)
    compiled(array, np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(array, np.full((4, 3), 2, np.float32))
    with pytest.raises(ingot.errors.InputError, match="share memory"):
        compiled(x, x[:2])
    compiled.close()


def test_several_threads_call_at_once(driver: EmulatedDriver) -> None:
    model = Several().eval()
    compiled = ingot.compile(model, (torch.randn(4, 5), torch.randn(3, 7)), target=EMULATED)
    wrong: list[BaseException] = []

    def call(seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        try:
            for _ in range(5):
                args = (torch.randn(4, 5, generator=draws), torch.randn(3, 7, generator=draws))
                with torch.no_grad():
                    same(compiled(*args), model(*args))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    compiled.close()


def test_threads_take_turns_with_state(driver: EmulatedDriver) -> None:
    compiled = ingot.compile(Counter().eval(), (torch.ones(1, 5),), target=EMULATED)
    seen: list[float] = []
    threads = [
        threading.Thread(target=lambda: [seen.append(float(compiled(torch.ones(1, 5))[0, 0])) for _ in range(5)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 21))
    compiled.close()


def test_a_branch_on_a_value_of_the_device(driver: EmulatedDriver) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x[0] > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    compiled = ingot.compile(branch, (torch.ones(4),), target=EMULATED)
    for x in (torch.tensor([1.0, 2.0, -3.0, 4.0]), torch.tensor([-1.0, 2.0, -3.0, 4.0])):
        same(compiled(x), branch(x))
    compiled.close()


def test_a_loop_on_a_value_of_the_device(driver: EmulatedDriver) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def loop(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda x, limit: x[0] < limit, lambda x, limit: (x * 2, limit.clone()), (x, limit))[0]

    compiled = ingot.compile(loop, (torch.ones(3), torch.tensor(10.0)), target=EMULATED)
    for limit, expected in ((10.0, 16.0), (0.5, 1.0), (1000.0, 1024.0)):
        same(compiled(torch.ones(3), torch.tensor(limit)), torch.full((3,), expected))
    compiled.close()


def test_a_size_that_a_value_of_the_device_tells(driver: EmulatedDriver) -> None:
    def fill(count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        n = count.item()
        torch._check(n >= 0)
        torch._check(n <= 100)
        table = torch.full((n, 3), 2.0) * x
        return torch.where(count > 0, table[: n // 2, :].new_ones(()) * x, x)

    compiled = ingot.compile(fill, (torch.tensor(4), torch.randn(3)), target=EMULATED)
    for count in (4, 0, 50):
        x = torch.randn(3)
        same(compiled(torch.tensor(count), x), x)
    compiled.close()


def test_numbers_and_scalar_results(driver: EmulatedDriver) -> None:
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    compiled = ingot.compile(scale, (torch.randn(3), 2.5), dynamic_shapes={"x": {0: "n"}, "by": None}, target=EMULATED)
    same(compiled(torch.ones(3), 2.5), torch.full((3,), 2.5))
    compiled.close()


def test_an_index_out_of_range_names_the_line(driver: EmulatedDriver) -> None:
    compiled = ingot.compile(Gather(), (torch.randn(4, 3), torch.tensor([0, 2])), target=EMULATED)
    table = torch.randn(4, 3)
    same(compiled(table, torch.tensor([3, -1]))[0], table[[3, 3]] * 2)
    with pytest.raises(IndexError, match=r"models\.py:\d+"):
        compiled(table, torch.tensor([0, 4]))
    same(compiled(table, torch.tensor([1, 2]))[0], table[[1, 2]] * 2)  # the model is as good as before
    compiled.close()


def test_an_assertion_on_values_is_raised(driver: EmulatedDriver) -> None:
    def asserted(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x[0] > 0, "the first must be positive")
        return x + 1

    compiled = ingot.compile(asserted, (torch.ones(3),), target=EMULATED)
    same(compiled(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(ingot.errors.AssertionFailed, match="the first must be positive"):
        compiled(-torch.ones(3))
    compiled.close()


def test_a_profile_has_every_launch(driver: EmulatedDriver) -> None:
    args = (torch.randn(4, 5), torch.randn(3, 7))
    compiled = ingot.compile(Several().eval(), args, target=EMULATED, disable_passes={"map_groups"})
    profile = compiled.profile(torch.randn(4, 5), torch.randn(3, 7), repeat=2)
    assert [row.seconds for row in profile.rows] == [0.0005] * 4 and "k3" in str(profile)
    compiled.close()
