"""Plain values with named fields that are cheap to define: importing a class costs only its body.

A NamedTuple or a dataclass costs a third of a millisecond when its module is imported, and the broker
starts with dozens of these. Here the constructor is compiled when the first value is created.
"""

from __future__ import annotations

from typing import Any, Self, dataclass_transform


@dataclass_transform(frozen_default=True, eq_default=True)
class Value:
    """A frozen record: annotated fields, in order, with defaults that are never changed.

    Type checkers treat values as frozen; there is no check and no cost at run time.
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _defaults: dict[str, Any] = {}  # noqa: RUF012 - of the class, and never changed

    def __init_subclass__(cls) -> None:
        names = tuple(cls.__annotations__)
        cls._fields = names
        cls._defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        _compile(cls)
        cls.__init__(self, *args, **kwargs)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed."""
        fields = {name: getattr(self, name) for name in self._fields}
        return type(self)(**{**fields, **changes})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({fields})"


def _compile(cls: type[Value]) -> None:
    """Generates the class's constructor."""
    parameters = [f"{name}=defaults[{name!r}]" if name in cls._defaults else name for name in cls._fields]
    lines = [f"def __init__(self, {', '.join(parameters)}):"]
    lines += [f"    self.{name} = {name}" for name in cls._fields] or ["    pass"]
    namespace: dict[str, Any] = {"defaults": cls._defaults}
    exec("\n".join(lines), namespace)
    cls.__init__ = namespace["__init__"]  # type: ignore[method-assign]
