"""How the mutation run distinguishes found mutants from tests that did not run."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import covering
import mutation_run
import pytest
from mutation_run import NoVerdict, Result, Run, Worker, report

from mutants import Mutant, changed_lines

MODULE = "tidemill/log/one.py"
TEST = "tests/log/test_one.py::test_first"
MUTANT = Mutant(MODULE, "NumberReplacer", 0, 1, 1)
OTHER = MUTANT._replace(occurrence=1)
SERVER = """\
import json, sys
for line in sys.stdin:
    arguments, output, limit_s = json.loads(line)
    code, text = answers.pop(0)
    open(output, "w").write(text)
    print(json.dumps(code), flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of two mutants without results."""
    one = object.__new__(Run)
    one.build = tmp_path
    one.tests_key = "present"
    one.sources = {MODULE: "NUMBER = 1\n"}
    one.covering = covering.Covering({TEST: 0.1}, {MODULE: {1: {TEST}}})
    one.mutants = [MUTANT, OTHER]
    one.results = {}
    one.kept = tmp_path / "results.jsonl"
    one._waiting = queue.SimpleQueue()
    for mutant in one.mutants:
        one._waiting.put(mutant)
    one._left = 2
    one._lock = mutation_run.threading.Lock()
    return one


class Answers:
    """Creates workers whose server sends these responses, and then ends."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run = run
        self._monkeypatch = monkeypatch
        self.workers: list[Worker] = []

    def worker(self, *answers: tuple[int, str]) -> Worker:
        """A worker that has not started."""
        program = f"answers = {list(answers)!r}\n{SERVER.replace('answers.pop', 'answers and answers.pop')}"
        popen = mutation_run.subprocess.Popen

        def started(command: Sequence[str], **options: Any) -> Any:
            return popen([sys.executable, "-c", program], **options, stderr=mutation_run.subprocess.DEVNULL)

        def copied(target: Path) -> None:
            (target / MODULE).parent.mkdir(parents=True)

        with self._monkeypatch.context() as patch:
            patch.setattr(mutation_run.subprocess, "Popen", started)
            patch.setattr(mutation_run, "copy_source", copied)
            self.workers.append(Worker(self._run, len(self.workers)))
        return self.workers[-1]


@pytest.fixture
def answers(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    made = Answers(run, monkeypatch)
    yield made
    for worker in made.workers:
        worker.server.kill()
        worker.server.communicate()


FAILED, NOT_COLLECTED = f"FAILED {TEST} - AssertionError\n", "ERROR tests/log/test_one.py - NameError\n"


@pytest.mark.parametrize(
    ("given", "outcome", "by"),
    [
        pytest.param([(0, "")], "survived", "", id="passed"),
        pytest.param([(1, FAILED)], "found", TEST, id="failed"),
        pytest.param([(3, FAILED + "ResourceWarning")], "found", TEST, id="failed, with an error at the end"),
        pytest.param([(-1, "")], "found", "exit code -1: ", id="without an end"),
        pytest.param(
            [(4, NOT_COLLECTED), (0, "")],
            "found",
            "tests/log/test_one.py - NameError",
            id="not collected, and collected without the fault",
        ),
        pytest.param(
            [(4, "no such test"), (0, "")], "found", "exit code 4: no such test", id="a name that is gone"
        ),
    ],
)
def test_the_tests_of_a_mutant_find_it_or_not(
    answers: Answers, given: list[tuple[int, str]], outcome: str, by: str
) -> None:
    result = answers.worker(*given).tried(MUTANT)
    assert (result.outcome, result.by) == (outcome, by)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([(2, "")], id="interrupted"),
        pytest.param([(3, "INTERNALERROR> KeyError")], id="internal error"),
        pytest.param([(5, "no tests ran")], id="no tests"),
        pytest.param([(-9, "")], id="killed"),
        pytest.param([(4, NOT_COLLECTED), (4, NOT_COLLECTED)], id="not collected without the fault either"),
        pytest.param([(4, "usage"), (3, "")], id="internal error without the fault"),
    ],
)
def test_tests_that_do_not_run_have_no_verdict(answers: Answers, given: list[tuple[int, str]]) -> None:
    with pytest.raises(NoVerdict):
        answers.worker(*given).tried(MUTANT)


def test_a_mutant_without_a_verdict_does_not_end_the_worker(run: Run, answers: Answers) -> None:
    answers.worker((3, ""), (1, FAILED)).run()
    assert list(run.results) == [OTHER.name]
    assert report(run) is False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_with_an_ended_worker_fails(
    run: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = answers.worker((1, FAILED))
    monkeypatch.setattr(mutation_run, "Run", lambda *given: run)
    monkeypatch.setattr(mutation_run, "Worker", lambda *given: worker)
    monkeypatch.setattr(sys, "argv", ["mutation_run.py", "--workers", "1"])
    assert mutation_run.main() == 1
    assert f"no result: {OTHER.name}" in capsys.readouterr().out


def result_of(mutant: Mutant, outcome: str, key: str = "present") -> Result:
    return Result(mutant.name, outcome, "before", "after", "", 1, 0.0, key)


@pytest.mark.parametrize(
    ("second", "enough"),
    [
        (result_of(OTHER, "found"), True),
        (result_of(OTHER, "found", "former"), True),
        (result_of(OTHER, "survived"), False),
        (None, False),
    ],
)
def test_a_sample_passes_when_each_mutant_has_a_result_and_enough_are_found(
    run: Run, second: Result | None, enough: bool
) -> None:
    run.results = {MUTANT.name: result_of(MUTANT, "found")}
    if second is not None:
        run.results[OTHER.name] = second
    assert report(run) is enough


def test_a_survivor_of_former_tests_has_no_result(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutation_run, "verdicts", lambda: {(MODULE[9:], "before", "after"): "equivalent"})
    run.results = {MUTANT.name: result_of(MUTANT, "found"), OTHER.name: result_of(OTHER, "survived")}
    assert report(run) is True
    run.results[OTHER.name] = result_of(OTHER, "survived", "former")
    assert report(run) is False
    assert f"no result: {OTHER.name}" in capsys.readouterr().out


SOURCE = "import one\n\n\n@cache\ndef first():\n    return 1\n\n\n@cache\ndef second():\n    return 2\n"


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("    return 1\n", "    return 2\n", ("return 1", "return 2")),
        ("@cache\ndef first", "def first", ("@cache", "")),
        ("\n@cache\ndef first", "def first", ("@cache", "")),
        ("\n\n@cache\ndef second", "def second", ("@cache", "")),
        ("    return 1\n", "    one.begin()\n    return 1\n", ("", "one.begin()")),
        ("import one\n", "", ("import one", "")),
        ("one", "one", ("", "")),
    ],
)
def test_the_lines_that_an_edit_changes_are_those_that_differ(
    old: str, new: str, changed: tuple[str, str]
) -> None:
    assert changed_lines(SOURCE, SOURCE.replace(old, new)) == changed


def test_each_verdict_has_the_current_line() -> None:
    known = mutation_run.verdicts()
    assert known
    assert [key for key in known if not key[1]] == []
    assert any(" | " in key[1] for key in known), "a bar in a line does not end its cell"
    package = mutation_run.PAGE.parents[1] / "src" / "tidemill"
    lines = {
        module: {line.strip() for line in (package / module).read_text().splitlines()} for module, *_ in known
    }
    assert [(module, before) for module, before, _ in known if before not in lines[module]] == []


def test_a_survivor_is_tried_with_the_other_tests_of_its_line(
    run: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests named after its module come first, then those of its package, the fast ones before the others."""
    monkeypatch.setattr(mutation_run, "TESTS_MAX", 2)
    monkeypatch.setattr(mutation_run, "REST_S_MAX", 3.0)
    seconds = {
        TEST: 0.5,
        "tests/log/test_other.py::test_slow": 2.0,
        "tests/log/test_other.py::test_fast": 0.1,
        "tests/broker/test_other.py::test_fast": 0.1,
        "tests/broker/test_other.py::test_endless": 900.0,
    }
    run.covering = covering.Covering(seconds, {MODULE: {1: set(seconds)}})
    assert run.tests_of(MUTANT) == (
        [TEST, "tests/log/test_other.py::test_fast"],
        ["tests/log/test_other.py::test_slow", "tests/broker/test_other.py::test_fast"],
    )
    slow = "FAILED tests/log/test_other.py::test_slow - assert 1 == 2"
    result = answers.worker((0, ""), (1, slow)).tried(MUTANT)
    assert (result.outcome, result.by, result.tests) == ("found", "tests/log/test_other.py::test_slow", 4)


DEFINITIONS = """\
A, B = 1, 2
TABLE: dict[int, str] = {
    1: "one",
}


class Thing:
    size: int = 3

    @property
    def half(self, part: int = 2) -> float:
        return self.size / part
"""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (1, {"A", "B"}),
        (3, {"TABLE"}),
        (7, {"Thing"}),
        (8, {"size"}),
        (10, {"half"}),
        (11, {"half"}),
        (12, set()),
    ],
)
def test_a_line_that_runs_at_import_defines_names(line: int, names: set[str]) -> None:
    assert covering.defined_at_import(DEFINITIONS, line) == names


def test_a_line_that_runs_at_import_is_tried_with_the_tests_that_use_its_definition() -> None:
    """Under coverage, the test that happens to import the module first runs it."""
    first, user = "tests/broker/test_any.py::test_import", "tests/broker/test_other.py::test_use"
    sources = {MODULE: "LIMIT = 1\n", "tidemill/broker/other.py": "\n\nuse(LIMIT)\n"}
    known = covering.Covering(
        {first: 0.1, user: 0.2}, {MODULE: {1: {first}}, "tidemill/broker/other.py": {3: {user}}}
    )
    assert covering.concerning(MUTANT, known, sources) == [first, user]


def test_a_line_that_runs_at_import_is_tried_with_the_test_files_that_use_its_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of a table's contents runs no line of the source."""
    monkeypatch.setattr(covering, "ROOT", tmp_path)
    (tmp_path / "test_table.py").write_text("assert TABLE == {1: 1}\n")
    (tmp_path / "test_word.py").write_text("# No TABLE here.\nTABLES = OTHER\n")
    first, table, word = "test_any.py::test", "test_table.py::test", "test_word.py::test"
    known = covering.Covering({first: 0.1, table: 0.2, word: 0.3}, {MODULE: {1: {first}}})
    source = "LIMIT = 1\nLIMITS = (LIMIT,)\nTABLE: dict[int, int] = {one: one for one in LIMITS}\nOTHER = 2\n"
    assert covering.with_dependents(source, {"LIMIT"}) == {"LIMIT", "LIMITS", "TABLE"}
    assert covering.concerning(MUTANT, known, {MODULE: source}) == [first, table]
