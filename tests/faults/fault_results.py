"""Results of runs, stored for the source that they ran: an interrupted series continues where it stopped."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def source_digest(root: Path, folders: Iterable[str]) -> str:
    """Returns a digest of the content of all Python files in folders below ``root``."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(f"\0{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Results:
    """A file with one JSON object a line: ``{"key": ..., "result": ...}``; the first has the first seed."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        """``anew``: ignores the results in the file."""
        self.path = path
        self._known: list[tuple[Any, Any]] = []
        if path.exists() and not anew:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            self.first_seed = int(lines[0]["first_seed"])
            self._known = [(line["key"], line["result"]) for line in lines[1:]]
        else:
            self.first_seed = int(time.time())
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"first_seed": self.first_seed}) + "\n", encoding="utf-8")

    def find(self, key: Any) -> Any | None:
        """Returns the result of the run with this key; None if it has not run."""
        return next((result for known, result in self._known if known == key), None)

    def add(self, key: Any, result: Any) -> None:
        """Stores the result of a run."""
        self._known.append((key, result))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "result": result}) + "\n")
