"""Records with named fields that are cheap to define: importing a class costs only its body.

A NamedTuple or a dataclass costs a third of a millisecond when its module is imported, and the broker
starts with dozens of these. Here the constructor is compiled when the first value is created.

A value cannot be hashed. The records of this folder that are hashed (keys of timers, and records of the log)
are NamedTuples.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, dataclass_transform


class _ValueType(type):
    """Creates a class with a slot for each annotated field."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _ValueType:
        fields = tuple(namespace.get("__annotations__", ())) if bases else ()
        namespace["_defaults"] = {field: namespace.pop(field) for field in fields if field in namespace}
        namespace["_fields"] = namespace["__slots__"] = fields
        return super().__new__(cls, name, bases, namespace)


@dataclass_transform(frozen_default=True, eq_default=True, kw_only_default=True)
class Value(metaclass=_ValueType):
    """A record of annotated fields, with defaults that are never changed.

    The fields are slots, and the constructor accepts keywords only. Type checkers treat a value as frozen;
    there is no check at run time.
    """

    _fields: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]

    def __init__(self, **fields: Any) -> None:
        cls = type(self)
        _compile(cls)
        cls.__init__(self, **fields)

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
    lines = [f"def __init__({', '.join(['self', '*', *parameters] if parameters else ['self'])}):"]
    lines += [f"    self.{name} = {name}" for name in cls._fields] or ["    pass"]
    namespace: dict[str, Any] = {"defaults": cls._defaults}
    exec("\n".join(lines), namespace)
    cls.__init__ = namespace["__init__"]  # type: ignore[method-assign]
