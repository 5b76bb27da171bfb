"""Runs the first slice of a handler at once, as asyncio's ``eager_start`` does, but without a task."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Coroutine, Generator
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def eager_start(
    handle: Callable[Parameters, Coroutine[object, object, Result]],
) -> Callable[Parameters, Result | Coroutine[object, object, Result]]:
    """Decorates a handler so that its first slice runs at once, without a task.

    The decorated handler returns the response if the first slice completes it, otherwise a coroutine for it.
    The handler may await only futures and :class:`tidemill.broker.large_requests.RequestSlices`.
    """

    @functools.wraps(handle)
    def begin(
        *arguments: Parameters.args, **options: Parameters.kwargs
    ) -> Result | Coroutine[object, object, Result]:
        work = handle(*arguments, **options)
        try:
            first = work.send(None)
        except StopIteration as done:
            result: Result = done.value
            return result
        return _continue(work, first)

    return begin


async def _continue(work: Coroutine[object, object, Result], awaited: object) -> Result:
    return await _resumed(work, awaited)


@types.coroutine
def _resumed(work: Coroutine[object, object, Result], awaited: object) -> Generator[object, object, Result]:
    """Continues a coroutine that was started and waits for ``awaited``."""
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:
            work.close()
            raise
        except BaseException as problem:  # noqa: BLE001 - passed to the coroutine
            step = functools.partial(work.throw, problem)
        else:
            step = functools.partial(work.send, sent)
        try:
            awaited = step()
        except StopIteration as done:
            result: Result = done.value
            return result
