"""Filters on metadata: what is read, and what is refused with the right way to write it."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.actions.collections import metadata_of
from pipeline.actions.filters import Condition, matches, parse
from pipeline.errors import SearchError, StoreRejected


def found(metadata: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return matches(metadata, parse(wanted))


@pytest.mark.req("003-024", "003-030", "003-038")
@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("type = 'article'", "the filter is a text"),
        (["type"], "the filter is a list"),
        (7, "the filter is a number"),
        ({"type": {"$eq": "article"}}, "the filter's type has a dict for a value"),
        ({"$and": []}, "the filter has the key '\\$and'"),
        ({7: "x"}, "the filter has the key 7"),
        ({"": "x"}, "the filter has the key ''"),
        ({" ": "x"}, "the filter has the key ' '"),
        ({"type": None}, "the filter's type has a NoneType for a value"),
        ({"type": ["a", "b"]}, "only key_in takes a list"),
        ({"type_in": "article"}, "the filter's type_in has no list"),
        ({"logged_in": True}, "logged_in_eq for metadata of that name"),
        ({"type_in": [["a"]]}, "the filter's type_in has a list for a value"),
        ({"type_in": {"a": 1}}, "the filter's type_in has no list"),
        ({"n_gte": True}, "compares with a truth value"),
        ({"n_lt": math.nan}, "no finite number"),
        ({"n": math.inf}, "no finite number"),
        ({"_gte": 1}, "names no key before its operator"),
        ({"date__gte": "2024"}, "names no key before its operator"),
        ({"type_nin": ["a"]}, "ends in an unknown operator"),
        ({"type_not_in": ["a"]}, "type_not_in_eq for metadata of that name"),
        ({"title_like": "a%"}, "ends in an unknown operator"),
        ({"good": 1, "bad": object()}, "the filter's bad has a object for a value"),
    ],
)
def test_metadata_filter_invalid_syntax(wanted: Any, message: str) -> None:
    with pytest.raises(SearchError, match=message) as caught:
        parse(wanted)
    assert caught.value.fix


@pytest.mark.req("003-024")
def test_none_and_nothing_ask_nothing() -> None:
    assert parse(None) == parse({}) == ()
    assert matches({}, ())


@pytest.mark.req("003-024")
def test_a_suffix_is_always_an_operator() -> None:
    """A document whose key ends like one is found by `_eq` behind the whole key."""
    metadata = {"opt_in": True, "opt": "x", "price_gte": 5}
    assert found(metadata, {"opt_in": ["x", "y"]})
    assert found(metadata, {"opt_in_eq": True})
    assert found(metadata, {"price_gte_eq": 5})
    assert not found(metadata, {"price_gte": 5})
    assert found(metadata, {"price_gte_gt": 4})
    assert found({"update": 1, "in": 2, "altgte": 3}, {"update": 1, "in": 2, "altgte": 3})


@pytest.mark.req("003-024")
def test_dates_as_yaml_reads_them_are_text() -> None:
    wanted = {"on_gte": date(2024, 1, 1), "at_lt": datetime(2024, 6, 1, tzinfo=UTC)}
    stored = metadata_of({"on": date(2024, 1, 1), "at": datetime(2024, 5, 31, tzinfo=UTC)}, 0)
    assert stored == {"on": "2024-01-01", "at": "2024-05-31T00:00:00+00:00"}
    assert found(stored, wanted)
    assert found(stored, {"at": datetime(2024, 5, 31, tzinfo=UTC)})
    assert not found({**stored, "on": "2023-12-31"}, wanted)


def test_metadata_is_json_and_what_postgresql_can_hold() -> None:
    given = {"a": (1, 2), "b\x00": "x\x00y", 7: {"c": math.nan}, "d": None, "lone": "\ud800"}
    assert metadata_of(given, 0) == {"a": [1, 2], "b": "xy", "7": {"c": None}, "d": None, "lone": "?"}
    for bad in ({"x": {1, 2}}, {"x": [b"y"]}, "text"):
        with pytest.raises(StoreRejected, match=r"metadata no. 3"):
            metadata_of(bad, 3)


scalars = st.one_of(st.text(max_size=3), st.integers(-3, 3), st.booleans(), st.floats(-3, 3))
anything = st.recursive(st.none() | scalars, lambda one: st.lists(one, max_size=2), max_leaves=4)


@given(
    value=anything,
    wanted=scalars,
    operator=st.sampled_from(["eq", "ne", "gte", "gt", "lte", "lt", "contains"]),
)
def test_no_pair_of_values_raises(value: Any, wanted: Any, operator: str) -> None:
    condition = Condition(key="k", operator=operator, value=wanted)
    answer = matches({"k": value}, [condition])
    if operator == "ne":
        assert answer is not matches({"k": value}, [Condition(key="k", operator="eq", value=wanted)])
    assert isinstance(answer, bool)


@given(value=scalars, wanted=scalars)
def test_order_is_of_numbers_or_of_texts(value: Any, wanted: Any) -> None:
    def compared(operator: str) -> bool:
        return matches({"k": value}, [Condition(key="k", operator=operator, value=wanted)])

    alike = (
        type(value) is not bool
        and type(wanted) is not bool
        and isinstance(value, str) == isinstance(wanted, str)
    )
    assert (compared("gte") or compared("lt")) is alike
    assert compared("gt") is (compared("gte") and not compared("eq"))
    assert compared("lte") is (alike and not compared("gt"))
