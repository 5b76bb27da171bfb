"""Runs seeds of the simulator over the source beside it, and prints one line of JSON for each.

:mod:`mutant_run` starts it in a copy of the repository, in which one fault is planted, or a probe for each.
``_planted`` is a module of that copy, where probes count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "simulation"))

import _planted  # type: ignore[import-not-found]  # noqa: E402
from simulate import KINDS  # noqa: E402

try:
    from event_log import Violation
except ModuleNotFoundError:
    from story import Violation  # type: ignore[no-redef]

import tidemill  # noqa: E402

TEXT_MAX = 600


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=sorted(KINDS), default="cluster")
    parser.add_argument("seeds", type=int, nargs="+")
    options = parser.parse_args()
    if not Path(tidemill.__file__).is_relative_to(ROOT):
        raise RuntimeError(f"{tidemill.__file__} is not the source in {ROOT}")
    for seed in options.seeds:
        print(json.dumps(run(options.kind, seed)), flush=True)
    return 0


def run(kind: str, seed: int) -> dict[str, Any]:
    """What came of one seed."""
    _planted.hits.clear()
    began = time.perf_counter()
    outcome, text = "kept", ""
    try:
        KINDS[kind](seed).run()
    except Violation as problem:
        outcome, text = "violated", str(problem).splitlines()[0]
    except Exception as problem:  # noqa: BLE001 - told, and not taken for a promise that was broken
        outcome, text = "crashed", repr(problem)
    return {
        "seed": seed,
        "outcome": outcome,
        "text": text[:TEXT_MAX],
        "hits": dict(_planted.hits),
        "seconds": round(time.perf_counter() - began, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
