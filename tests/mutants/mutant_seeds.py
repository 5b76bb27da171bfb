"""Runs seeds of the simulator with the source beside it, and prints one line of JSON for each.

:mod:`mutant_run` starts it in a copy of the repository, in which one fault is planted, or a probe for each.
``_planted`` is a module of that copy, in which probes count.

| outcome | meaning |
|---|---|
| kept | all promises were kept |
| violated | a promise was broken; an error of the program breaks ``no-error`` |
| endless | the run does not end in :data:`SEED_S_MAX`: the cluster does not come to rest |
| edit | the edit itself raises an error (:mod:`error_origin`) |
| simulator | a checker, or the simulated world, has failed, which is no result for the program |

The process ends after an endless run, even if seeds are left.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "simulation"))

import _planted  # type: ignore[import-not-found]  # noqa: E402
from error_origin import Edit, Origin, Sources  # noqa: E402
from event_log import EventLog, Violation  # noqa: E402
from promises import PROMISES  # noqa: E402
from simulate import KINDS  # noqa: E402

import tidemill  # noqa: E402

TEXT_MAX = 600
SEED_S_MAX = 300.0
"""A run that takes longer counts as endless."""
SOURCES = Sources(Path(tidemill.__file__).parent, ROOT / "tests" / "simulation")
OUTCOMES = {Origin.PROGRAM: "violated", Origin.EDIT: "edit", Origin.SIMULATOR: "simulator"}
CHECKER_FAILED = "a checker has failed"
VIOLATE, EMIT = EventLog.violate, EventLog.emit


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=sorted(KINDS), default="cluster")
    parser.add_argument("--edit", nargs=3, metavar=("FILE", "FIRST", "END"), help="the lines of the fault")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    options = parser.parse_args()
    if not Path(tidemill.__file__).is_relative_to(ROOT):
        raise RuntimeError(f"{tidemill.__file__} is not the source in {ROOT}")
    edit = Edit(options.edit[0], int(options.edit[1]), int(options.edit[2])) if options.edit else None
    for seed in options.seeds:
        print(json.dumps(run(options.kind, seed, edit)), flush=True)
    return 0


class Judge:
    """Records the error, if any, of the first violation of a run."""

    def __init__(self) -> None:
        self._logged: BaseException | None = None
        self.error: BaseException | None = None

    def emit(self, events: EventLog, record: logging.LogRecord) -> None:
        """Replaces :meth:`EventLog.emit`."""
        self._logged = record.exc_info[1] if record.exc_info else None
        EMIT(events, record)
        self._logged = None

    def violate(self, events: EventLog, text: str) -> None:
        """Replaces :meth:`EventLog.violate`."""
        if not events.violation and promise_of(text) in ("", "no-error"):
            self.error = self._logged or sys.exc_info()[1]
        VIOLATE(events, text)

    def outcome_of(self, text: str, edit: Edit | None) -> tuple[str, str]:
        """Returns the outcome of a run with this first violation, and the text with the promise's name."""
        if text.startswith(CHECKER_FAILED):
            return OUTCOMES[Origin.SIMULATOR], text
        origin = Origin.PROGRAM if self.error is None else SOURCES.origin_of(self.error, edit)
        return OUTCOMES[origin], text if promise_of(text) else f"no-error: {text}"


def promise_of(text: str) -> str:
    """Returns the name of the promise at the start of a violation's text; empty without one."""
    name = text.partition(": ")[0]
    return name if name in PROMISES else ""


def run(kind: str, seed: int, edit: Edit | None = None) -> dict[str, Any]:
    """Returns the outcome of one seed."""
    _planted.hits.clear()
    began = time.perf_counter()

    def result_line(outcome: str, text: str) -> dict[str, Any]:
        return {
            "seed": seed,
            "outcome": outcome,
            "text": text[:TEXT_MAX],
            "hits": dict(_planted.hits),
            "seconds": round(time.perf_counter() - began, 3),
        }

    def too_long(number: int, frame: FrameType | None) -> None:
        # The endless code could catch an exception.
        outcome = "simulator" if SOURCES.is_in_checker(frame) else "endless"
        print(json.dumps(result_line(outcome, f"rest: the run does not end in {SEED_S_MAX:g} s")), flush=True)
        os._exit(0)

    judge = Judge()
    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SEED_S_MAX)
    try:
        with (
            mock.patch.object(EventLog, "emit", lambda *of: judge.emit(*of)),
            mock.patch.object(EventLog, "violate", lambda *of: judge.violate(*of)),
        ):
            KINDS[kind](seed).run()
    except Violation as problem:
        line = str(problem).splitlines()[0]
        return result_line(*judge.outcome_of(line.partition(" steps: ")[2] or line, edit))
    except Exception as problem:  # noqa: BLE001 - the outcome tells where it is from
        origin = SOURCES.origin_of(problem, edit, ends_run=True)
        return result_line(OUTCOMES[origin], f"no-error: the run ends with {problem!r}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return result_line("kept", "")


if __name__ == "__main__":
    sys.exit(main())
