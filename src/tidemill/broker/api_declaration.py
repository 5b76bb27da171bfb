"""The declaration of an API by the module that handles it: key, versions, class of the request, function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

from tidemill.wire.apis import ApiKey
from tidemill.wire.schema import Struct

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

Request = TypeVar("Request", bound=Struct)
Response = TypeVar("Response", bound=Struct)

Outcome: TypeAlias = Response | Coroutine[object, object, Response]
"""The response, or a coroutine that returns it."""
Handler: TypeAlias = "Callable[[Broker, RequestContext, Request], Outcome[Struct]]"


class CompiledApi(NamedTuple):
    """An API that :class:`~tidemill.broker.kafka_apis.KafkaApis` handles, and its versions."""

    key: ApiKey
    first: int
    last: int


class HandledApi(NamedTuple):
    """An API and its versions, from ``first`` to ``last``, with the function that handles its requests."""

    key: ApiKey
    first: int
    last: int
    request_class: Callable[[], type[Struct]]
    """Returns the class of the requests that ``handle`` accepts."""
    handle: Handler[Struct]
    to_controller: bool
    """Whether only the controller handles its requests. Other brokers forward them to the controller."""

    @property
    def versions(self) -> tuple[int, int]:
        """The first and the last version. Requests to other brokers have one of them."""
        return self.first, self.last

    def has_version(self, version: int) -> bool:
        """Whether the handler accepts requests of ``version``."""
        return self.first <= version <= self.last


ServedApi: TypeAlias = CompiledApi | HandledApi


def declare_api(
    key: ApiKey,
    first: int,
    last: int,
    request_class: Callable[[], type[Request]],
    handle: Handler[Request],
    *,
    to_controller: bool = False,
) -> HandledApi:
    """Declares an API. ``request_class`` is a function: messages are imported with their first use."""
    # The dispatch calls a handler only with a request that it decoded as its `request_class`.
    return HandledApi(key, first, last, request_class, cast("Handler[Struct]", handle), to_controller)


async def response_of(outcome: Outcome[Response]) -> Response:
    """Returns the response of a handler, after waiting for it if necessary."""
    return outcome if isinstance(outcome, Struct) else await outcome
