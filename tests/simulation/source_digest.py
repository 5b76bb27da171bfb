"""The digest of the source that simulated clusters run: a long run resumes with the same one."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tidemill"
NOT_SIMULATED = ("cli", "client", "pipeline", "testing")
"""Packages that simulated clusters do not import: no seed runs their source."""
SIMULATED = (
    *(
        path
        for path in sorted(PACKAGE.iterdir())
        if path.name not in NOT_SIMULATED and (path.is_dir() or path.suffix == ".py")
    ),
    ROOT / "tests" / "simulation",
)
"""The files and folders that a seed of a simulated cluster runs."""


def digest_of(paths: Iterable[Path], *others: str) -> str:
    """Returns a digest of the code in the Python files below ``paths``, and of ``others``; 12 hexadecimal
    digits.

    Comments, docstrings, line breaks and tests do not count.
    """
    digest = hashlib.sha256("\0".join(others).encode())
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if not file.name.startswith("test_"):
                digest.update(f"\0{file.relative_to(ROOT)}\0{_code_of(file.read_text())}".encode())
    return digest.hexdigest()[:12]


def _code_of(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_docstring(one)]
    return ast.dump(tree)


def _is_docstring(node: ast.stmt) -> bool:
    """Also of a variable."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
