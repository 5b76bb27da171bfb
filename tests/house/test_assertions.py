"""Every test has an assertion, or calls a helper that has one, and enters its context managers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

TESTS = Path(__file__).parents[1]

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

CHECKS = {"assert_outcomes", "pytest.fail", "pytest.raises", "pytest.warns", "run_state_machine_as_test"}
"""Functions of pytest and Hypothesis that fail if a condition is false."""

FAILURES = {"AssertionError", "Violation"}
"""Exceptions of helpers for a false condition; the second is a broken promise of the simulator."""

RUNS_OTHERS = {"test_the_simulated_store_passes_the_store_tests"}
"""Tests that run tests of another file, which are checked there."""


class Module(NamedTuple):
    """The definitions and imports of a file of tests."""

    functions: dict[str, Function]
    methods: dict[str, list[Function]]
    imported: dict[str, tuple[Path, str]]
    """File and original name of each name imported from another file of tests."""
    files: set[Path]
    """The file itself, the files of tests that it imports, and the files of its fixtures."""


@cache
def trees() -> dict[Path, ast.Module]:
    """Returns the syntax trees of all tests and their helpers."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(TESTS.rglob("*.py"))}


@cache
def module(path: Path) -> Module:
    """Returns the definitions and imports of a file."""
    found = Module({}, {}, {}, {path})
    for node in trees()[path].body:
        if isinstance(node, Function):
            found.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, Function):
                    found.methods.setdefault(member.name, []).append(member)
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.ImportFrom) and (home := helper(path, node.module)):
            found.files.add(home)
            found.imported.update({one.asname or one.name: (home, one.name) for one in node.names})
        elif isinstance(node, ast.Import):
            found.files.update(home for one in node.names if (home := helper(path, one.name)))
    found.files.update(one for one in (path.parent / "conftest.py", TESTS / "conftest.py") if one in trees())
    return found


def helper(path: Path, name: str | None) -> Path | None:
    """Returns the file of a module imported in ``path``; None for a module outside the tests."""
    homes = [one for one in trees() if one.stem == name]
    return next((one for one in homes if one.parent == path.parent), homes[0] if homes else None)


def states_itself(function: Function) -> bool:
    """Returns whether the function or a nested one has an assertion."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        raised = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(raised, ast.Call) and ast.unparse(raised.func) in FAILURES:
            return True
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CHECKS:
                return True
            if isinstance(called, ast.Attribute):
                owner = called.value.id if isinstance(called.value, ast.Name) else ""
                if called.attr in CHECKS or f"{owner}.{called.attr}" in CHECKS:
                    return True
    return False


@cache
def states(path: Path, function: Function, depth: int = 5) -> bool:
    """Returns whether the function or a function that it calls has an assertion."""
    if states_itself(function):
        return True
    called = {node.func for node in ast.walk(function) if isinstance(node, ast.Call)}
    return depth > 0 and any(states(*one, depth - 1) for func in called for one in defined(path, func))


def defined(path: Path, called: ast.expr) -> Iterator[tuple[Path, Function]]:
    """Returns the functions of the tests that a call in ``path`` may refer to."""
    here = module(path)
    if isinstance(called, ast.Name):
        home, name = here.imported.get(called.id, (path, called.id))
        for one in (home, *sorted(here.files)):
            if name in module(one).functions:
                yield one, module(one).functions[name]
                return
    elif isinstance(called, ast.Attribute):
        for one in sorted(here.files):
            # A method that only calls others is not followed: its name may be anybody's.
            for method in module(one).methods.get(called.attr, []):
                if states_itself(method):
                    yield one, method
            is_module = isinstance(called.value, ast.Name) and called.value.id == one.stem
            if is_module and called.attr in module(one).functions:
                yield one, module(one).functions[called.attr]


def is_context_manager(function: Function) -> bool:
    """Returns whether the function is decorated as a context manager."""
    return any(ast.unparse(one).endswith("contextmanager") for one in function.decorator_list)


def test_every_context_manager_is_entered() -> None:
    # The body of a context manager that is called as a function never runs, and its test passes.
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and any(is_context_manager(function) for _, function in defined(path, node.value.func))
    ]
    assert found == []


def test_every_test_states_a_fact_that_can_fail() -> None:
    silent = [
        f"{path.relative_to(TESTS)}:{node.lineno}: {node.name}"
        for path, tree in trees().items()
        if path.name.startswith("test_")
        for node in ast.walk(tree)
        if isinstance(node, Function)
        and node.name.startswith("test_")
        and node.name not in RUNS_OTHERS
        and not states(path, node)
    ]
    assert silent == []


def test_a_test_without_an_assertion_is_found() -> None:
    def told(source: str) -> bool:
        (function,) = ast.parse(source).body
        assert isinstance(function, Function)
        return states(Path(__file__), function)

    assert not told("def test_it():\n    work()\n    value.append(3)")
    assert not told("def test_it():\n    with suppress(ValueError):\n        work()")
    assert told("def test_it():\n    for one in work():\n        assert one")
    assert told("def test_it():\n    with pytest.raises(ValueError):\n        work()")
    assert told("async def test_it():\n    async def story():\n        assert await work()\n    run(story())")
    assert told("def test_it():\n    test_every_test_states_a_fact_that_can_fail()")
