"""What a stage changed: nodes added, removed, and replaced.

A node is replaced by those of the same name and place, or by all new ones of its place in the user's code: passes hand
the line and the module of what they take apart to what they put there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ingot.viewer.pools import encode_runs

# A node of a stage: the path of its graph, its name, its index in the pool.
Listed = tuple[str, str, int]


def compare_stages(before: Sequence[Listed], after: Sequence[Listed], places: Sequence[int]) -> dict[str, Any]:
    """The delta of two stages; `places` has the place of each node of the pool.

    before − removed − every `before` + added + every `after` = after.
    """
    known, wanted = {index for _, _, index in before}, {index for _, _, index in after}
    old = [one for one in before if one[2] not in wanted]
    new = [one for one in after if one[2] not in known]
    pairs = _pair_by_name(old, new, places)
    paired = {index for pair in pairs for index in pair}
    groups = [{"before": [a], "after": [b]} for a, b in pairs]
    rest_old = [index for _, _, index in old if index not in paired]
    rest_new = [index for _, _, index in new if index not in paired]
    by_place: dict[int, tuple[list[int], list[int]]] = {}
    for side, indexes in ((0, rest_old), (1, rest_new)):
        for index in indexes:
            if places[index] >= 0:
                by_place.setdefault(places[index], ([], []))[side].append(index)
    replaced = {place: sides for place, sides in by_place.items() if all(sides)}
    groups += [{"before": gone, "after": made} for gone, made in replaced.values()]
    return {
        "added": encode_runs(index for index in rest_new if places[index] not in replaced),
        "removed": encode_runs(index for index in rest_old if places[index] not in replaced),
        "replaced": groups,
    }


def _pair_by_name(old: Sequence[Listed], new: Sequence[Listed], places: Sequence[int]) -> list[tuple[int, int]]:
    """Nodes that kept their graph, name and place: their operator, arguments or type changed."""
    found: Mapping[tuple[str, str], int] = {(path, name): index for path, name, index in old}
    made: list[tuple[int, int]] = []
    for path, name, index in new:
        other = found.get((path, name))
        if other is not None and places[other] == places[index]:
            made.append((other, index))
    return made


def compare_steps(before: Sequence[str], after: Sequence[str]) -> dict[str, list[int]]:
    """The places of steps whose text is new, and of those whose text is gone."""
    return {"added": _find_unmatched(after, Counter(before)), "removed": _find_unmatched(before, Counter(after))}


def _find_unmatched(texts: Sequence[str], others: Counter[str]) -> list[int]:
    left = others.copy()
    found: list[int] = []
    for place, text in enumerate(texts):
        if left[text]:
            left[text] -= 1
        else:
            found.append(place)
    return found
