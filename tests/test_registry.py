"""The class behind every rule table."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ingot.registry import Registry

aten = torch.ops.aten


def first() -> str:
    return "first"


def second() -> str:
    return "second"


def test_a_rule_is_found_by_each_of_its_keys() -> None:
    table: Registry[str, Any] = Registry("rule")
    assert table.register("a", "b")(first) is first
    assert table["a"] is table.get("b") is first
    assert list(table.keys()) == ["a", "b"] and len(table) == 2 and "a" in table


def test_a_missing_rule_is_none() -> None:
    table: Registry[Any, Any] = Registry("rule")
    assert table.get("a") is None
    assert table.find(aten.relu.default) is None
    with pytest.raises(KeyError):
        table["a"]


def test_a_second_rule_names_both() -> None:
    table: Registry[str, Any] = Registry("lowering rule")
    table.register("a")(first)
    with pytest.raises(ValueError, match=r"a has a second lowering rule: \S*test_registry\.first and \S*\.second"):
        table.register("b", "a")(second)
    assert table["a"] is first


def test_the_same_key_twice_in_one_registration_is_refused() -> None:
    table: Registry[str, Any] = Registry("rule")
    with pytest.raises(ValueError, match="has a second rule"):
        table.register("a", "a")(first)


def test_an_operator_is_found_by_itself_before_its_name() -> None:
    table: Registry[Any, Any] = Registry("rule")
    table.register("aten.relu.default", "aten.neg.default")(first)
    table.register(aten.relu.default)(second)
    assert table.find(aten.relu.default) is second
    assert table.find(aten.neg.default) is first
    assert table.get(aten.neg.default) is None


def test_tags_belong_to_keys() -> None:
    table: Registry[Any, Any] = Registry("rule")
    table.register("a", "aten.relu.default", tags=("whole",))(first)
    table.register("b")(first)
    assert table.list_tagged("whole") == {"a", "aten.relu.default"}
    assert table.has_tag("a", "whole") and not table.has_tag("b", "whole") and not table.has_tag("a", "other")
    assert table.has_tag(aten.relu.default, "whole")
    assert table.list_tagged("other") == frozenset()
