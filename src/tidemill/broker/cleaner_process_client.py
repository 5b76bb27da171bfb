"""The broker's side of the cleaner process, which it starts on demand and ends when idle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol

from tidemill.log.cleaner_messages import (
    ABORT,
    GO_ON,
    HEADER,
    STORAGE,
    CleanCounts,
    CleanedGroup,
    CleanJob,
    Failure,
    Message,
    NewPace,
    decode,
    encode,
)

PROCESS_EXITED = "process exited"
"""The kind of failure if the process ended during a job."""

END_S = 5.0
"""The time that the process has to exit after the end of its input; then it is killed."""

ReplaceSegments = Callable[[CleanedGroup], Awaitable[bool]]
"""Replaces the segments of a cleaned group. Returns False to stop the cleaning."""


class CleanerWorker(Protocol):
    """Runs cleaning jobs, one at a time."""

    async def clean(self, job: CleanJob, replace: ReplaceSegments) -> CleanCounts | Failure | None:
        """Runs one job. Returns None if ``replace`` stopped it."""

    def set_bytes_per_second(self, bytes_per_second: float) -> None:
        """Changes the limit of I/O for the running job."""

    async def release(self) -> None:
        """Releases resources while there is nothing to clean."""


class CleanerProcess:
    """A worker in a separate process (:mod:`tidemill.log.cleaner_process`)."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._is_cleaning = False

    async def clean(self, job: CleanJob, replace: ReplaceSegments) -> CleanCounts | Failure | None:
        """See :class:`CleanerWorker`. A cancellation ends the process."""
        done = False
        try:
            process = await self._running()
        except OSError as problem:
            # Not an error of the log: the machine has no free process or memory.
            return Failure(STORAGE, f"the cleaner process could not be started: {problem}")
        try:
            self._is_cleaning = True
            await self._send(process, job)
            while True:
                message = await self._receive(process)
                if isinstance(message, CleanedGroup):
                    await self._send(process, GO_ON if await replace(message) else ABORT)
                    continue
                done = True
                return message if isinstance(message, (CleanCounts, Failure)) else None
        except (OSError, EOFError) as problem:
            return await self._exited(problem)
        finally:
            self._is_cleaning = False
            if not done:
                await self.release()

    def set_bytes_per_second(self, bytes_per_second: float) -> None:
        """See :class:`CleanerWorker`."""
        process = self._process
        if self._is_cleaning and process is not None and process.stdin is not None:
            process.stdin.write(encode(NewPace(bytes_per_second)))

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
        return self._process

    async def _send(self, process: asyncio.subprocess.Process, message: Message) -> None:
        if process.stdin is None:
            raise EOFError(f"process {process.pid} has no pipe for its input")
        process.stdin.write(encode(message))
        await process.stdin.drain()

    async def _receive(self, process: asyncio.subprocess.Process) -> Message:
        if process.stdout is None:
            raise EOFError(f"process {process.pid} has no pipe for its output")
        header = await process.stdout.readexactly(HEADER.size)
        return decode(await process.stdout.readexactly(HEADER.unpack(header)[0]))

    async def _exited(self, problem: Exception) -> Failure:
        code = None
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    code = await self._process.wait()
        if code is None:
            return Failure(PROCESS_EXITED, f"the cleaner process could not be used: {problem}")
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return Failure(PROCESS_EXITED, f"the cleaner process ended {how} during a job")

    async def release(self) -> None:
        """Ends the process, which frees its memory."""
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
