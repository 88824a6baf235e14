"""Calls of several kinds, timed interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def time_interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    pause: float = 0.0,
    least: float = 0.0,
    on_round: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """The seconds of every timed call, by kind.

    In each round every kind has its turn, another one first. What ran before leaves caches and threads in its own
    state, so a turn begins with `pause` seconds of nothing and a call that is not counted; calls are then timed until
    they took `least` seconds together, one of them in any case. `on_round` is called after each round.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(pause)
            calls[name]()
            taken: list[float] = []
            while not taken or sum(taken) < least:
                begin = time.perf_counter()
                calls[name]()
                taken.append(time.perf_counter() - begin)
            times[name] += taken
        on_round()
    return times
