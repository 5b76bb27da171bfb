"""Which errors under a planted fault are errors of the program, so that they break a promise.

| raised | counts |
|---|---|
| in the program | yes, except errors of the edit itself |
| in the simulator: OSError, TidemillError | yes: an unhandled error of a disk, a network or a store |
| in the simulator: other errors | no: a checker, or the simulated world, has failed |

An error of the edit itself shows in the first run, so that nobody would commit the edit: a name, an attribute
or a module that does not exist; wrong arguments; each TypeError or AttributeError in the lines of the edit.
In other lines ``None`` after an omitted check is an error of the program.
"""

from __future__ import annotations

import re
import traceback
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tidemill.model.errors import TidemillError

SIGNATURES = re.compile(r"\b(positional|keyword(-only)?) arguments?\b|unexpected keyword argument")
"""In the text of a TypeError about a call."""
WORLD = "simulated_"
"""Begins the names of the simulator's modules that are no checkers."""


class Origin(Enum):
    """The origin of an error."""

    PROGRAM = "program"
    EDIT = "edit"
    SIMULATOR = "simulator"


class Edit(NamedTuple):
    """The lines of a planted fault."""

    file: str
    """Below ``src/tidemill``."""
    first: int
    end: int
    """The first line that is not of the edit any more; equal to the first where lines were removed."""

    def holds(self, path: Path, line: int | None) -> bool:
        """Whether a line of a file belongs to the edit."""
        return path.as_posix().endswith(f"tidemill/{self.file}") and self.first <= (line or 0) < self.end


class Sources(NamedTuple):
    """The directories of the copy of the repository with the planted fault."""

    program: Path
    simulator: Path

    def innermost(self, problem: BaseException) -> tuple[Path, int | None] | None:
        """Returns file and line in which an error was raised, without the functions called from there."""
        for frame in reversed(traceback.extract_tb(problem.__traceback__)):
            path = Path(frame.filename)
            if path.is_relative_to(self.program) or path.is_relative_to(self.simulator):
                return path, frame.lineno
        return None

    def origin_of(self, problem: BaseException, edit: Edit | None, *, ends_run: bool = False) -> Origin:
        """Returns the origin of an error; an error that ends the run was not handled by the program."""
        at = self.innermost(problem)
        if at is None or at[0].is_relative_to(self.simulator):
            is_answer = isinstance(problem, OSError | TidemillError) and not ends_run
            return Origin.PROGRAM if is_answer else Origin.SIMULATOR
        is_of_edit = edit is not None and edit.holds(*at)
        return Origin.EDIT if _is_of_first_try(problem, is_in_edit=is_of_edit) else Origin.PROGRAM

    def is_in_checker(self, frame: FrameType | None) -> bool:
        """Whether a checker runs now: neither code of the program nor of the simulated world."""
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(self.program):
                return False
            if path.is_relative_to(self.simulator):
                return not path.name.startswith(WORLD)
            frame = frame.f_back
        return False


def _is_of_first_try(problem: BaseException, *, is_in_edit: bool) -> bool:
    if isinstance(problem, NameError | ImportError | SyntaxError):
        return True
    if isinstance(problem, AttributeError):
        return is_in_edit or "'NoneType'" not in str(problem)
    return isinstance(problem, TypeError) and (is_in_edit or bool(SIGNATURES.search(str(problem))))
