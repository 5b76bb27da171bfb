"""Compiled and plain mode: the selection, equal results of both, and up-to-date compiled modules."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill

PACKAGE = Path(tidemill.__file__).parent
ROOT = PACKAGE.parent.parent
BUILT = PACKAGE / "_built.json"
CORPUS = Path(__file__).parent / "record_corpus.py"
PYTHONPATH = os.pathsep.join((str(PACKAGE.parent), str(CORPUS.parents[1])))
NOT_BUILT = "the data path is not compiled here: run `make build`"


def answers(plain: bool, *arguments: str) -> list[str]:
    """The output of the corpus script: the mode, then a line for each result."""
    environment = {**os.environ, "TIDEMILL_PLAIN": "1" if plain else "0", "PYTHONPATH": PYTHONPATH}
    result = subprocess.run(
        [sys.executable, str(CORPUS), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def plain_answers() -> list[str]:
    lines = answers(True)
    assert lines[0] == "plain: TIDEMILL_PLAIN is set"
    return lines[1:]


def test_the_corpus_has_valid_and_invalid_batches(plain_answers: list[str]) -> None:
    refused = sum("CorruptMessage" in line or "InvalidRecord" in line for line in plain_answers)
    assert len(plain_answers) > 8000
    assert 2000 < refused < len(plain_answers) - 1000


@pytest.mark.skipif(not BUILT.exists(), reason=NOT_BUILT)
def test_compiled_and_plain_results_are_equal(plain_answers: list[str]) -> None:
    lines = answers(False)
    assert lines[0] == "compiled", f"{lines[0]}; run `make build`"
    assert lines[1:] == plain_answers


def test_without_librt_the_same_source_runs(plain_answers: list[str]) -> None:
    lines = answers(False, "--without-librt")
    assert lines[0] == "plain: librt does not load: ABI version conflict"
    assert lines[1:] == plain_answers


@pytest.mark.skipif(not BUILT.exists(), reason=NOT_BUILT)
def test_compiled_modules_are_not_stale() -> None:
    built = json.loads(BUILT.read_text())
    sources = [
        line
        for line in (ROOT / "compiled_modules.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert sorted(built) == sorted(sources), "compiled_modules.txt was edited: run `make build`"
    edited = [
        source
        for source, digest in built.items()
        if hashlib.sha256((ROOT / source).read_bytes()).hexdigest() != digest
    ]
    assert not edited, f"edited since they were compiled, and so not what runs: {edited}; run `make build`"


def test_arrow_accepts_the_vectors_of_both_modes() -> None:
    """Without librt the columns are in other vectors, which Arrow must support as well."""
    script = (
        "import sys; sys.argv.append('--without-librt'); sys.path.insert(0, sys.argv[1]);"
        "import record_corpus;"
        "from tidemill.records.arrow import to_record_batch;"
        "from default_limits import decode_columns;"
        "from record_builders import build_batch;"
        "data = build_batch([(1, None, b'a', [('h', b'x')]), (2, b'k', None, None)]);"
        "batch = to_record_batch(decode_columns(data, want_headers=True));"
        "batch.validate(full=True);"
        "print(batch['value'].to_pylist(), batch['key'].to_pylist(), batch['offset'].to_pylist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(CORPUS.parent)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout.strip() == "[b'a', None] [None, b'k'] [0, 1]", result.stderr
