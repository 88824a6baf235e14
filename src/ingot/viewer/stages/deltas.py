"""What a stage changed: nodes added, removed, and replaced.

A node is replaced by those of the same name and place, or by all new ones of its place in the user's code: passes hand
the line and the module of what they take apart to what they put there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ingot.viewer.pools import encode_runs
from ingot.viewer.view_data import Json

# A node of a stage: the path of its graph, its name, its index in the pool.
Listed = tuple[str, str, int]


def compare_stages(before: Sequence[Listed], after: Sequence[Listed], nodes: Sequence[Json]) -> dict[str, Any]:
    """The delta of two stages; `nodes` is the pool.

    before − removed − every `before` + added + every `after` = after.
    """
    known, wanted = {index for _, _, index in before}, {index for _, _, index in after}
    old = [one for one in before if one[2] not in wanted]
    new = [one for one in after if one[2] not in known]
    groups: list[dict[str, list[int]]] = []
    for key in (_own_key, _moved_key):
        pairs = _pair(old, new, nodes, key)
        groups += [{"before": [a], "after": [b]} for a, b in pairs]
        paired = {index for pair in pairs for index in pair}
        old = [one for one in old if one[2] not in paired]
        new = [one for one in new if one[2] not in paired]
    by_place: dict[int, tuple[list[int], list[int]]] = {}
    for side, rest in ((0, old), (1, new)):
        for _, _, index in rest:
            place = nodes[index]["place"]
            if place >= 0:
                by_place.setdefault(place, ([], []))[side].append(index)
    replaced = {place: sides for place, sides in by_place.items() if all(sides)}
    groups += [{"before": gone, "after": made} for gone, made in replaced.values()]
    return {
        "added": encode_runs(index for _, _, index in new if nodes[index]["place"] not in replaced),
        "removed": encode_runs(index for _, _, index in old if nodes[index]["place"] not in replaced),
        "replaced": groups,
    }


def _own_key(listed: Listed, node: Json) -> Hashable:
    """A node that kept its graph, its name and its place: its operator, its arguments or its type changed."""
    return listed[0], listed[1], node["kind"], node["place"]


def _moved_key(listed: Listed, node: Json) -> Hashable:
    """A node that went into another graph, a region for one, and is the same there."""
    return listed[1], node["target"], node["place"]


def _pair(
    old: Sequence[Listed], new: Sequence[Listed], nodes: Sequence[Json], key: Callable[[Listed, Json], Hashable]
) -> list[tuple[int, int]]:
    """Old and new nodes that one key stands for, where it stands for one of each."""
    sides: list[dict[Hashable, list[int]]] = [{}, {}]
    for side, listed in zip(sides, (old, new), strict=True):
        for one in listed:
            side.setdefault(key(one, nodes[one[2]]), []).append(one[2])
    gone, made = sides
    return [(gone[k][0], made[k][0]) for k in made if len(made[k]) == 1 and len(gone.get(k, ())) == 1]


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
