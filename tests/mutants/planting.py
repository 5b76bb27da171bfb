"""Plants one fault in a copy of the source, or a probe for each fault that counts its effects.

A fault has an effect from the moment at which the faulty source behaves differently. A probe detects when
that is possible: an omitted check has an effect only if the check fails. Other faults are assumed to have an
effect whenever their statement runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import NamedTuple

MODULE = "_planted"
COUNTERS_SOURCE = '''\
"""Counts by the names of planted faults the number of their effects."""

from collections import Counter

hits: Counter[str] = Counter()
'''


class Fault(NamedTuple):
    """One edit that breaks one rule of the program."""

    name: str
    file: str
    """Below ``src/tidemill``."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    rule: str
    """The rule of the source that the fault breaks."""
    reason: str = ""
    """The reason why the simulator does not find it."""
    test: str = ""
    """The test that finds it instead of the simulator: its file below ``tests``, ``::`` and its name."""
    kind: str = "cluster"
    """The kind of simulation that searches for it."""


class NotApplicable(Exception):
    """A fault that does not match the current source."""


class Probe(NamedTuple):
    """A counting line, and its position in the source."""

    at: int
    line: str


def plant(fault: Fault, source: str) -> str:
    """Returns the file with the fault. Raises NotApplicable."""
    count = source.count(fault.old)
    if count != 1:
        raise NotApplicable(f"{fault.name}: its old text is {count} times in {fault.file}, not once")
    if fault.old == fault.new:
        raise NotApplicable(f"{fault.name}: it changes nothing")
    start = source.index(fault.old)
    changed = source[:start] + fault.new + source[start + len(fault.old) :]
    try:
        compile(changed, fault.file, "exec")
    except SyntaxError as problem:
        raise NotApplicable(f"{fault.name}: {fault.file} is no Python with it: {problem}") from None
    return changed


def lines_of(fault: Fault, source: str) -> tuple[int, int]:
    """Returns the first changed line of the faulty file, and the line after the last: equal for a removal."""
    before, after = source.splitlines(), plant(fault, source).splitlines()
    pairs = list(zip(before, after, strict=False))
    first = next((at for at, (old, new) in enumerate(pairs) if old != new), len(pairs))
    backwards = zip(reversed(before[first:]), reversed(after[first:]), strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], backwards)))
    return first + 1, len(after) - same + 1


def with_probes(faults: Iterable[Fault], source: str) -> str:
    """Returns the file with a probe for each fault, and without faults. Raises NotApplicable."""
    for probe in sorted((probe_of(fault, source) for fault in faults), reverse=True):
        source = source[: probe.at] + probe.line + source[probe.at :]
    return source


def probe_of(fault: Fault, source: str) -> Probe:
    """Returns the probe of a fault. Raises NotApplicable outside of functions, where none counts."""
    plant(fault, source)
    text = _Text(source)
    start = source.index(fault.old)
    first = start + len(fault.old) - len(fault.old.lstrip())
    changed = text.innermost(first)
    if changed is None:
        raise NotApplicable(f"{fault.name}: it changes no statement of a function in {fault.file}")
    if isinstance(changed, ast.If) and text.is_within(changed.test, start, start + len(fault.old)):
        new = fault.new.strip()
        if new.startswith(("if False:", "elif False:")) or (not new and text.has_own_line(changed.body[0])):
            return text.probe(changed.body[0], fault.name)
        if new.startswith("if True:") and text.has_own_line(changed):
            return text.probe(changed, fault.name, f"if not ({ast.unparse(changed.test)}): ")
    while not text.has_own_line(changed):
        changed = text.parent(changed)
    return text.probe(changed, fault.name)


class _Text:
    """A source with its statements."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines(keepends=True)
        self.begins = [0, *accumulate(map(len, self.lines))]
        self.tree = _parsed(source)

    def innermost(self, at: int) -> ast.stmt | None:
        """Returns the innermost statement of a function at this position; of a signature, the first of the
        body.
        """
        functions = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and self._holds(node, at)
        ]
        if not functions:
            return None
        function = max(functions, key=lambda node: node.lineno)
        held = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.stmt) and node is not function and self._holds(node, at)
        ]
        if held:
            return max(held, key=lambda node: (node.lineno, node.col_offset))
        body = function.body
        is_documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        return body[1 if is_documented and len(body) > 1 else 0]

    def _holds(self, node: ast.stmt, at: int) -> bool:
        return self.begins[node.lineno - 1] <= at < self.begins[node.end_lineno or 0]

    def is_within(self, node: ast.expr, start: int, end: int) -> bool:
        """Whether an expression is between two positions."""
        begin = self.begins[node.lineno - 1] + node.col_offset
        return start <= begin and self.begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0) <= end

    def has_own_line(self, node: ast.stmt) -> bool:
        """Whether a line can be inserted before a statement."""
        line = self.lines[node.lineno - 1]
        return not line[: node.col_offset].strip() and not line.lstrip().startswith(("elif", "@"))

    def parent(self, node: ast.stmt) -> ast.stmt:
        """Returns the enclosing statement."""
        for outer in ast.walk(self.tree):
            if isinstance(outer, ast.stmt) and node in ast.iter_child_nodes(outer):
                return outer
        raise NotApplicable("a statement is in no other")

    def probe(self, before: ast.stmt, name: str, condition: str = "") -> Probe:
        """Returns a probe before a statement."""
        line = self.lines[before.lineno - 1]
        indent = line[: len(line) - len(line.lstrip())]
        count = f"__import__({MODULE!r}).hits[{name!r}] += 1"
        return Probe(self.begins[before.lineno - 1], f"{indent}{condition}{count}\n")


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)
