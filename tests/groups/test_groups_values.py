"""Value classes."""

from __future__ import annotations

import pytest

from tidemill.coordinator_runtime.value_classes import Value


class Point(Value):
    x: int
    y: int = 7


class Nothing(Value):
    pass


def test_fields_are_keywords_and_have_defaults() -> None:
    assert (Point(x=1).x, Point(x=1).y) == (1, 7)
    assert Point(x=1, y=2) == Point(y=2, x=1)
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != (1, 7)
    assert Nothing() == Nothing()


@pytest.mark.parametrize(
    ("positional", "keywords"),
    [
        pytest.param((), {}, id="a missing field"),
        pytest.param((), {"x": 1, "z": 2}, id="an unknown field"),
        pytest.param((1,), {}, id="a positional argument"),
    ],
)
def test_rejects_wrong_fields(positional: tuple[int, ...], keywords: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Point(*positional, **keywords)


def test_a_value_has_no_other_attribute() -> None:
    with pytest.raises(AttributeError):
        Point(x=1).z = 2  # type: ignore[attr-defined]


def test_a_changed_copy_does_not_change_the_value() -> None:
    point = Point(x=1)
    assert point.replace(y=9) == Point(x=1, y=9)
    assert point == Point(x=1, y=7)


def test_repr_shows_the_fields() -> None:
    assert repr(Point(x=1)) == "Point(x=1, y=7)"
