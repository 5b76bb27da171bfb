"""Which errors of a simulated run count as a broken promise."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from error_origin import Edit, Origin, Sources
from mutant_table import FOUND, rows_in_table
from planting import Fault, lines_of

SIMULATION = Path(__file__).parent.parent / "simulation"


@pytest.fixture
def mutant_seeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    planted = ModuleType("_planted")
    planted.hits = Counter()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "_planted", planted)
    monkeypatch.setattr(sys, "path", [str(SIMULATION), *sys.path])
    yield importlib.import_module("mutant_seeds")
    sys.modules.pop("mutant_seeds", None)


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    for name in ("tidemill", "simulation"):
        (tmp_path / name).mkdir()
    return Sources(tmp_path / "tidemill", tmp_path / "simulation")


def function_of(path: Path, body: str, **known: Any) -> Callable[[], None]:
    """Creates a function ``at`` whose third line is ``body``, in a file of the program or the simulator."""
    defined: dict[str, Any] = dict(known)
    exec(compile(f"def at():\n    item = None\n    {body}\n", str(path), "exec"), defined)
    function: Callable[[], None] = defined["at"]
    return function


def error_of(function: Callable[[], None]) -> Exception:
    try:
        function()
    except Exception as problem:  # noqa: BLE001 - it is what is looked at
        return problem
    raise RuntimeError("no error")


@pytest.mark.parametrize(
    ("body", "edit", "origin"),
    [
        pytest.param("raise KeyError('member')", Edit("one.py", 3, 4), Origin.PROGRAM, id="an error"),
        pytest.param("missing", None, Origin.EDIT, id="a name that does not exist"),
        pytest.param("import tidemill.nowhere", None, Origin.EDIT, id="a module that does not exist"),
        pytest.param("at(1)", None, Origin.EDIT, id="arguments that do not fit"),
        pytest.param("at(number=1)", None, Origin.EDIT, id="an argument that does not exist"),
        pytest.param("at.number", None, Origin.EDIT, id="an attribute that does not exist"),
        pytest.param("item.number", None, Origin.PROGRAM, id="None, behind a check that is left out"),
        pytest.param("item.number", Edit("one.py", 3, 4), Origin.EDIT, id="None, in the edit"),
        pytest.param("item.number", Edit("one.py", 2, 3), Origin.PROGRAM, id="None, behind the edit"),
        pytest.param("item.number", Edit("two.py", 3, 4), Origin.PROGRAM, id="None, in another file"),
        pytest.param("item[0]", None, Origin.PROGRAM, id="no list"),
        pytest.param("item[0]", Edit("one.py", 3, 4), Origin.EDIT, id="no list, in the edit"),
    ],
)
def test_an_error_in_the_program_is_of_the_program_or_of_the_edit(
    sources: Sources, body: str, edit: Edit | None, origin: Origin
) -> None:
    problem = error_of(function_of(sources.program / "one.py", body))
    assert sources.origin_of(problem, edit) is origin


@pytest.mark.parametrize(
    "body", ["raise KeyError('promise')", "item.number", "missing", "raise AssertionError"]
)
def test_an_error_in_a_checker_is_of_the_simulator_also_when_the_program_has_called_it(
    sources: Sources, body: str
) -> None:
    checker = function_of(sources.simulator / "some_promise.py", body)
    program = function_of(sources.program / "one.py", "check()", check=checker)
    assert sources.origin_of(error_of(checker), None) is Origin.SIMULATOR
    assert sources.origin_of(error_of(program), None) is Origin.SIMULATOR


def test_an_error_of_the_program_that_passes_through_a_checker_is_of_the_program(sources: Sources) -> None:
    program = function_of(sources.program / "one.py", "raise KeyError('member')")
    checker = function_of(sources.simulator / "some_promise.py", "call()", call=program)
    assert sources.origin_of(error_of(checker), None) is Origin.PROGRAM


def test_errors_of_the_simulated_disk_count_for_the_program_unless_they_end_the_run(sources: Sources) -> None:
    problem = error_of(function_of(sources.simulator / "simulated_disk.py", "raise OSError(28, 'full')"))
    assert sources.origin_of(problem, None) is Origin.PROGRAM
    assert sources.origin_of(problem, None, ends_run=True) is Origin.SIMULATOR


def test_endless_code_is_in_a_checker_only_without_code_of_the_program(
    sources: Sources,
) -> None:
    frames: list[bool] = []

    def look() -> None:
        frames.append(sources.is_in_checker(sys._getframe()))

    checker = function_of(sources.simulator / "some_promise.py", "look()", look=look)
    checker()
    function_of(sources.simulator / "simulated_loop.py", "look()", look=look)()
    function_of(
        sources.simulator / "some_promise.py",
        "call()",
        call=function_of(sources.program / "one.py", "look()", look=look),
    )()
    assert frames == [True, False, False]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("b\n", "x\ny\n", (2, 4)),
        ("b\n", "", (2, 2)),
        ("a\nb\nc\n", "a\nc\n", (2, 2)),
        ("a\nb\n", "a\nx\nb\n", (2, 3)),
        ("c\n", "", (3, 3)),
    ],
)
def test_the_lines_of_an_edit_are_those_that_differ(old: str, new: str, lines: tuple[int, int]) -> None:
    assert lines_of(Fault("one", "one.py", old, new, ""), "a\nb\nc\nd\n"[: 8 if old != "c\n" else 6]) == lines


def fake_kind(mutant_seeds: Any, function: Callable[[Any], None]) -> type:
    """Creates a kind of simulation that runs ``function``, with the events of the run."""

    class Simulation:
        def __init__(self, seed: int) -> None:
            self.seed = seed

        def run(self) -> None:
            events = mutant_seeds.EventLog(type("Loop", (), {"time": lambda self: 0.0})())
            function(events)
            if events.violation:
                raise mutant_seeds.Violation(f"Simulation: seed 1, 5 steps: {events.violation}\nlines")

    return Simulation


def outcome_of(
    mutant_seeds: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], None], sources: Sources
) -> tuple[str, str]:
    monkeypatch.setitem(mutant_seeds.KINDS, "fake", fake_kind(mutant_seeds, function))
    monkeypatch.setattr(mutant_seeds, "SOURCES", sources)
    found = mutant_seeds.run("fake", 1)
    return found["outcome"], found["text"]


def logged(function: Callable[[], None]) -> Callable[[Any], None]:
    """Logs the error of a function as the program does."""

    def happen(events: Any) -> None:
        problem = error_of(function)
        events.emit(
            logging.LogRecord(
                "tidemill",
                logging.ERROR,
                "",
                0,
                "it broke",
                (),
                (type(problem), problem, problem.__traceback__),
            )
        )

    return happen


def test_an_error_that_the_program_logs_breaks_a_promise(
    mutant_seeds: Any, monkeypatch: pytest.MonkeyPatch, sources: Sources
) -> None:
    happen = logged(function_of(sources.program / "one.py", "raise KeyError('member')"))
    outcome, text = outcome_of(mutant_seeds, monkeypatch, happen, sources)
    assert outcome in FOUND
    assert text == "no-error: the program logs an internal error: it broke (KeyError('member'))"


@pytest.mark.parametrize(
    ("of_program", "body", "outcome"),
    [(True, "missing", "edit"), (True, "at.number", "edit"), (False, "raise KeyError", "simulator")],
)
def test_a_logged_error_of_the_edit_or_of_a_checker_is_no_find(
    mutant_seeds: Any,
    monkeypatch: pytest.MonkeyPatch,
    sources: Sources,
    of_program: bool,
    body: str,
    outcome: str,
) -> None:
    path = sources.program / "one.py" if of_program else sources.simulator / "some_promise.py"
    assert outcome_of(mutant_seeds, monkeypatch, logged(function_of(path, body)), sources)[0] == outcome
    assert outcome not in FOUND


def test_a_checker_that_fails_is_no_find(
    mutant_seeds: Any, monkeypatch: pytest.MonkeyPatch, sources: Sources
) -> None:
    def happen(events: Any) -> None:
        events.violate("a checker has failed: KeyError('t')")

    assert outcome_of(mutant_seeds, monkeypatch, happen, sources)[0] == "simulator"


def test_a_broken_promise_is_a_find_also_where_an_error_is_handled(
    mutant_seeds: Any, monkeypatch: pytest.MonkeyPatch, sources: Sources
) -> None:
    def happen(events: Any) -> None:
        try:
            function_of(sources.program / "one.py", "missing")()
        except NameError:
            events.violate("in-sync: nobody has it")

    assert outcome_of(mutant_seeds, monkeypatch, happen, sources) == ("violated", "in-sync: nobody has it")


@pytest.mark.parametrize(
    ("of_program", "outcome"), [pytest.param(True, "violated", id="program"), (False, "simulator")]
)
def test_an_error_that_ends_the_run_counts_when_it_is_of_the_program(
    mutant_seeds: Any, monkeypatch: pytest.MonkeyPatch, sources: Sources, of_program: bool, outcome: str
) -> None:
    path = sources.program / "one.py" if of_program else sources.simulator / "some_promise.py"
    function = function_of(path, "raise IndexError(1)")
    assert outcome_of(mutant_seeds, monkeypatch, lambda events: function(), sources)[0] == outcome


class Exited(BaseException):
    """Raised instead of the end of the process."""


@pytest.mark.parametrize(("of_program", "outcome"), [(True, "endless"), (False, "simulator")])
def test_a_run_that_does_not_end_counts_unless_it_is_in_a_checker(
    mutant_seeds: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sources: Sources,
    of_program: bool,
    outcome: str,
) -> None:
    def ended(code: int) -> None:
        raise Exited

    path = sources.program / "one.py" if of_program else sources.simulator / "some_promise.py"
    function = function_of(path, "while True: pass")
    monkeypatch.setattr(mutant_seeds, "SEED_S_MAX", 0.05)
    monkeypatch.setattr(os, "_exit", ended)
    with pytest.raises(Exited):
        outcome_of(mutant_seeds, monkeypatch, lambda events: function(), sources)
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["text"]) == (outcome, "rest: the run does not end in 0.05 s")


def test_each_seed_of_the_page_breaks_a_promise(mutant_seeds: Any) -> None:
    rows = rows_in_table(SIMULATION.parent.parent / "docs" / "mutants.md")
    texts = {name: row.line.split(" | ")[3] for name, row in rows.items() if row.seed}
    assert [name for name, text in texts.items() if not mutant_seeds.promise_of(text)] == []
