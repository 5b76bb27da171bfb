"""The process that cleans logs, as the broker holds it: started when it is needed, let go when it is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tidemill.log.clean_job import (
    ABORT,
    GO_ON,
    HEADER,
    STORAGE,
    CleanCounts,
    CleanedGroup,
    CleanJob,
    Failure,
    NewPace,
    encode,
)

DIED = "died"
"""Kind of a failure: the process ended in the middle of a job."""

END_S = 5.0
"""How long a process may take to notice that its input has ended; then it is killed."""

Place = Callable[[CleanedGroup], Awaitable[bool]]
"""Puts a cleaned group in the place of its segments; False when the cleaning is to end."""


class CleanerWorker(Protocol):
    """Does jobs, one at a time."""

    async def clean(self, job: CleanJob, place: Place) -> CleanCounts | Failure | None:
        """Does one job; None when it was ended by ``place``."""

    def set_pace(self, bytes_per_second: float) -> None:
        """The limit was changed: a job that runs keeps to it from now on."""

    async def rest(self) -> None:
        """There is nothing to do for a while: gives back what can be given back."""


class CleanerProcess:
    """A worker in a process of its own (:mod:`tidemill.log.cleaner_process`)."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self._at_work = False

    @property
    def pid(self) -> int:
        """Of the process; -1 while none runs."""
        return self._process.pid if self._process is not None else -1

    async def clean(self, job: CleanJob, place: Place) -> CleanCounts | Failure | None:
        """See :class:`CleanerWorker`. When it is cancelled, the process is ended."""
        done = False
        try:
            process = await self._running()
        except OSError as problem:
            # No fault of the log: the machine has no process or memory left.
            return Failure(STORAGE, f"the cleaner process could not be started: {problem}")
        try:
            self._at_work = True
            await self._send(process, job)
            while True:
                message = await self._receive(process)
                if isinstance(message, CleanedGroup):
                    await self._send(process, GO_ON if await place(message) else ABORT)
                    continue
                done = True
                return message if isinstance(message, (CleanCounts, Failure)) else None
        except (OSError, EOFError) as problem:
            return await self._died(problem)
        finally:
            self._at_work = False
            if not done:
                await self._end()

    def set_pace(self, bytes_per_second: float) -> None:
        """See :class:`CleanerWorker`."""
        process = self._process
        if self._at_work and process is not None and process.stdin is not None:
            process.stdin.write(encode(NewPace(bytes_per_second)))

    async def rest(self) -> None:
        """Ends the process: its memory is better used elsewhere."""
        await self._end()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tidemill.log.cleaner_process",
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self.starts += 1
        return self._process

    async def _send(self, process: asyncio.subprocess.Process, message: Any) -> None:
        if process.stdin is None:
            raise EOFError
        process.stdin.write(encode(message))
        await process.stdin.drain()

    async def _receive(self, process: asyncio.subprocess.Process) -> Any:
        if process.stdout is None:
            raise EOFError
        header = await process.stdout.readexactly(HEADER.size)
        return pickle.loads(await process.stdout.readexactly(HEADER.unpack(header)[0]))

    async def _died(self, problem: Exception) -> Failure:
        code = None
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    code = await self._process.wait()
        if code is None:
            return Failure(DIED, f"the cleaner process could not be used: {problem}")
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return Failure(DIED, f"the cleaner process ended {how}, in the middle of its work")

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
