"""Plants one fault in a copy of the source, with a probe that counts how often it is reached."""

from __future__ import annotations

import ast
from itertools import accumulate
from typing import NamedTuple

MODULE = "_planted"
PROBE = f"__import__({MODULE!r}).hits += 1"
PLANTED_SOURCE = '"""Counts how often the planted fault is reached."""\n\nhits = 0\n'


class Fault(NamedTuple):
    """One edit that breaks one rule of the program."""

    name: str
    file: str
    """Below ``src/tidemill``."""
    old: str
    """Stands exactly once in the file."""
    new: str
    rule: str
    """What the source promises here, in a sentence."""
    reason: str = ""
    """Why the simulator does not find it, where it does not."""


class NotApplicable(Exception):
    """A fault that does not fit the source any more."""


class Planted(NamedTuple):
    """A source file with a fault in it."""

    source: str
    is_probed: bool
    """Whether a probe counts; False where the fault is in what runs at the import."""


def plant(fault: Fault, source: str) -> Planted:
    """The file with the fault. Raises NotApplicable."""
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
    at = _probe_at(source, start, start + len(fault.old))
    if at is None:
        return Planted(changed, False)
    line = source[at : source.index("\n", at)]
    indent = line[: len(line) - len(line.lstrip())]
    if at > start:
        at += len(fault.new) - len(fault.old)
    probed = f"{changed[:at]}{indent}{PROBE}\n{changed[at:]}"
    compile(probed, fault.file, "exec")
    return Planted(probed, True)


def _probe_at(source: str, start: int, end: int) -> int | None:
    """Where the line of a probe goes: before the statement that is changed; None outside of functions."""
    lines = source.splitlines(keepends=True)
    begins = [0, *accumulate(map(len, lines))]
    first = start + len(source[start:end]) - len(source[start:end].lstrip())

    def holds(node: ast.stmt) -> bool:
        return begins[node.lineno - 1] <= first < begins[node.end_lineno or 0]

    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and holds(node)
    ]
    if not functions:
        return None
    innermost = max(functions, key=lambda node: node.lineno)
    places = [
        begins[node.lineno - 1]
        for node in ast.walk(innermost)
        if isinstance(node, ast.stmt)
        and node is not innermost
        and holds(node)
        and not lines[node.lineno - 1][: node.col_offset].strip()
        and not lines[node.lineno - 1].lstrip().startswith(("elif", "@"))
        and begins[node.lineno - 1] <= start
    ]
    if places:
        return max(places)
    body = innermost.body
    is_documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    opening = begins[body[1 if is_documented and len(body) > 1 else 0].lineno - 1]
    return None if start < opening < end else opening
