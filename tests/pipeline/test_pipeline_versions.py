"""The pages, the matrix and the package name the same lines of PySpark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lines_allowed() -> list[str]:
    """Returns the versions that the package allows, oldest first, as ``4.0``."""
    found = re.search(r'"pyspark>=4\.(\d+),<4\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return [f"4.{number}" for number in range(int(found[1]), int(found[2]))]


@pytest.mark.parametrize("page", ["README.md", "docs/spark.md"])
def test_the_page_lists_the_allowed_versions(page: str) -> None:
    lines = lines_allowed()
    assert f"PySpark {lines[0]} to {lines[-1]}" in (ROOT / page).read_text()


def test_the_matrix_runs_the_versions_that_are_not_installed() -> None:
    import pyspark

    *older, newest = lines_allowed()
    assert pyspark.__version__.startswith(f"{newest}.")
    found = re.search(r"^VERSIONS = \((.+)\)$", (ROOT / "tests/spark_matrix.py").read_text(), re.MULTILINE)
    assert found is not None
    assert re.findall(r'"([\d.]+)"', found[1]) == older


def test_the_help_of_make_names_every_line() -> None:
    told = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("spark:"))
    assert [line for line in lines_allowed() if line not in told] == []
