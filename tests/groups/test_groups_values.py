"""Value classes."""

from __future__ import annotations

import pytest

from tidemill.groups.value_classes import Value


class Point(Value):
    x: int
    y: int = 7


class Nothing(Value):
    pass


def test_fields_are_positional_or_keyword_and_have_defaults() -> None:
    assert (Point(1).x, Point(1).y) == (1, 7)
    assert Point(1, 2) == Point(y=2, x=1)
    assert Point(1) != Point(2)
    assert Point(1) != (1, 7)
    assert Nothing() == Nothing()


def test_rejects_wrong_fields() -> None:
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Point(1, z=2)  # type: ignore[call-arg]


def test_a_changed_copy_does_not_change_the_value() -> None:
    point = Point(1)
    assert point.replace(y=9) == Point(1, 9)
    assert point == Point(1, 7)


def test_repr_shows_the_fields() -> None:
    assert repr(Point(1)) == "Point(x=1, y=7)"
