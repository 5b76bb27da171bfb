"""Mutants: small faults at the positions where Cosmic Ray can create them, a sample of them, and the mutated
source.

A place is a position with a kind of operator: a comparison can be replaced in nine ways, and is one place. A
sample selects places at random, and one of the ways of each place. Edits that no test of plain Python can
observe are omitted: annotations, blocks for type checkers, and instructions for mypyc; and edits that are not
valid Python.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import parso.python  # noqa: F401 - Cosmic Ray's operators need it to be there first
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

PROVIDER = OperatorProvider()
OPERATORS = sorted(name for name in PROVIDER if not PROVIDER[name].arguments())

Range = tuple[tuple[int, int], tuple[int, int]]
"""(line, column) of the begin and of the end; lines count from 1."""


class Mutant(NamedTuple):
    """One edit of one module."""

    module: str
    """The module's path below ``src``."""
    operator: str
    occurrence: int
    first_line: int
    last_line: int

    @property
    def name(self) -> str:
        """Returns a name that is stable as long as the module does not change."""
        return f"{self.module}:{self.first_line} {self.operator} {self.occurrence}"


@cache
def operator_of(name: str) -> Any:
    """Returns an operator of Cosmic Ray."""
    return PROVIDER[name]()


def mutated(mutant: Mutant, source: str) -> str:
    """Returns the module's source with the mutant's edit."""
    edited = mutate_code(source, operator_of(mutant.operator), mutant.occurrence)
    if edited is None:
        raise ValueError(f"{mutant.name} is no mutant of this source")
    return str(edited)


def changed_lines(before: str, after: str) -> tuple[str, str]:
    """Returns the lines that an edit changed, without indentation, before and after: empty if removed."""
    old, new = before.splitlines(), after.splitlines()
    found = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [change for change in found if change[0] != "equal"]
    return (
        " ".join(line.strip() for _, begin, end, _, _ in changes for line in old[begin:end]).strip(),
        " ".join(line.strip() for _, _, _, begin, end in changes for line in new[begin:end]).strip(),
    )


def sample(root: Path, packages: list[str], left_out: list[str], count: int, seed: int) -> list[Mutant]:
    """Selects ``count`` mutants of the packages below ``root``; small samples are prefixes of larger ones."""
    places: dict[tuple[str, str, tuple[int, int]], list[Mutant]] = defaultdict(list)
    for package in packages:
        for path in sorted((root / "tidemill" / package).rglob("*.py")):
            module = str(path.relative_to(root))
            if any(module.startswith(f"tidemill/{one}/") for one in left_out):
                continue
            for kind, mutant, begin in _mutants_of(module, path.read_text("utf-8")):
                places[module, kind, begin].append(mutant)
    random = Random(seed)
    order = sorted(places)
    random.shuffle(order)
    chosen: list[Mutant] = []
    for place in order:
        mutant = random.choice(places[place])
        if len(chosen) < count and is_python(mutated(mutant, (root / mutant.module).read_text("utf-8"))):
            chosen.append(mutant)
    return chosen


def is_python(source: str) -> bool:
    """Whether the source is valid Python: a replaced ``*`` among the arguments of a function is not."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _mutants_of(module: str, source: str) -> Iterator[tuple[str, Mutant, tuple[int, int]]]:
    nodes = list(ast_nodes(get_ast(source)))
    unseen = list(_unobservable(ast.parse(source)))
    for name in OPERATORS:
        operator = operator_of(name)
        positions = (position for node in nodes for position in operator.mutation_positions(node))
        for occurrence, (begin, end) in enumerate(positions):
            if not any(first <= begin and end <= last for first, last in unseen):
                yield name.partition("_")[0], Mutant(module, name, occurrence, begin[0], end[0]), begin


def _unobservable(tree: ast.Module) -> Iterator[Range]:
    """Returns the ranges of annotations, and of code for type checkers or mypyc only."""
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(annotation, ast.expr):
            yield _range_of(annotation)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield _range_of(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "mypyc_attr":
            yield _range_of(node)
        if isinstance(node, ast.ClassDef):
            yield from (_decorator(one) for one in node.decorator_list if "mypyc_attr" in ast.unparse(one))


def _decorator(node: ast.expr) -> Range:
    """Includes the ``@``, since a decorator may be removed as a whole."""
    return (node.lineno, 0), (node.end_lineno or 0, node.end_col_offset or 0)


def _range_of(node: ast.expr | ast.stmt) -> Range:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
