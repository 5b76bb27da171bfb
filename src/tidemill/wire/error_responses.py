"""Responses with an error, built from their requests.

The error belongs to the response as a whole where its version has a field for it. Otherwise, and for a few
APIs always, the response repeats the items of the request, each with the error.

Source: the protocol; Apache Kafka, ``getErrorResponse`` of its requests.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Final, NamedTuple

from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.wire.apis import ApiKey, response_class
from tidemill.wire.schema import Struct, UnsupportedByVersion, carries

ERROR: Final = "error_code"
ERROR_TEXT: Final = "error_message"

ERRORS_OF_ITEMS: Final = frozenset({ApiKey.METADATA, ApiKey.FETCH, ApiKey.OFFSET_DELETE})
"""APIs whose errors belong to the items, although the response as a whole can have an error, too."""

VALUES_BESIDE_ERROR: Final[Mapping[int, Mapping[str, object]]] = {
    ApiKey.INIT_PRODUCER_ID: {"producer_epoch": -1},
    ApiKey.CREATE_DELEGATION_TOKEN: {
        "principal_type": "User",
        "principal_name": "ANONYMOUS",
        "token_requester_principal_type": "User",
        "token_requester_principal_name": "ANONYMOUS",
        "issue_timestamp_ms": -1,
        "expiry_timestamp_ms": -1,
        "max_timestamp_ms": -1,
    },
}
"""Field values beside the error of a whole response, where the default value of a field has a meaning."""


class ItemMap(NamedTuple):
    """The mapping of a request's items to those of its response."""

    items: tuple[str, ...]
    """The lists in the request. ``dirs.topics`` is the list in each item of another list."""
    results: str
    """The list in the response."""
    same: tuple[str, ...]
    """The fields of a result that identify the item. If an item is not a struct, it is the value of the first
    field."""
    inner: ItemMap | None = None
    """The mapping of a list in each item, whose results then contain the error."""
    error: str = ERROR
    names: Mapping[str, str] = {}
    """The names in the request of those fields that have another name there."""
    values: Mapping[str, object] = {}
    """Field values beside the error, where the default value of a field has a meaning."""
    is_distinct: bool = False
    """Whether the response has each item once, regardless of repetitions in the request."""


_TOPIC = ("name", "topic_id")
_PARTITIONS = ItemMap(("partitions",), "partitions", ("partition_index",))
_GROUPS = ItemMap(("group_ids",), "groups", ("group_id",))
_RESOURCES = ItemMap(("resources",), "responses", ("resource_type", "resource_name"))
_SHARE_STATE = ItemMap(
    ("topics",), "results", ("topic_id",), ItemMap(("partitions",), "partitions", ("partition",))
)

ITEM_MAPS: Final[Mapping[int, ItemMap]] = {
    ApiKey.PRODUCE: ItemMap(
        ("topic_data",),
        "responses",
        _TOPIC,
        ItemMap(("partition_data",), "partition_responses", ("index",), values={"base_offset": -1}),
    ),
    ApiKey.FETCH: ItemMap(
        ("topics",),
        "responses",
        ("topic", "topic_id"),
        ItemMap(
            ("partitions",),
            "partitions",
            ("partition_index",),
            names={"partition_index": "partition"},
            values={"high_watermark": -1, "records": b""},
        ),
    ),
    ApiKey.OFFSET_COMMIT: ItemMap(("topics",), "topics", _TOPIC, _PARTITIONS),
    ApiKey.CREATE_TOPICS: ItemMap(("topics",), "topics", ("name",)),
    ApiKey.DELETE_TOPICS: ItemMap(("topics", "topic_names"), "responses", _TOPIC),
    ApiKey.DELETE_RECORDS: ItemMap(
        ("topics",), "topics", ("name",), _PARTITIONS._replace(values={"low_watermark": -1})
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: ItemMap(
        ("v3_and_below_topics",),
        "results_by_topic_v3_and_below",
        ("name",),
        ItemMap(("partitions",), "results_by_partition", ("partition_index",), error="partition_error_code"),
    ),
    ApiKey.WRITE_TXN_MARKERS: ItemMap(
        ("markers",),
        "markers",
        ("producer_id",),
        ItemMap(("topics",), "topics", ("name",), _PARTITIONS._replace(items=("partition_indexes",))),
    ),
    ApiKey.TXN_OFFSET_COMMIT: ItemMap(("topics",), "topics", ("name",), _PARTITIONS),
    ApiKey.ALTER_CONFIGS: _RESOURCES,
    ApiKey.ALTER_REPLICA_LOG_DIRS: ItemMap(
        ("dirs.topics",), "results", ("topic_name",), _PARTITIONS, names={"topic_name": "name"}
    ),
    ApiKey.CREATE_PARTITIONS: ItemMap(("topics",), "results", ("name",)),
    ApiKey.DELETE_GROUPS: ItemMap(("groups_names",), "results", ("group_id",)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _RESOURCES,
    ApiKey.OFFSET_DELETE: ItemMap(("topics",), "topics", ("name",), _PARTITIONS),
    ApiKey.ALTER_CLIENT_QUOTAS: ItemMap(("entries",), "entries", ("entity",)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ItemMap(
        ("deletions", "upsertions"), "results", ("user",), names={"user": "name"}, is_distinct=True
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: ItemMap(
        ("transactional_ids",), "transaction_states", ("transactional_id",)
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _GROUPS,
    ApiKey.SHARE_GROUP_DESCRIBE: _GROUPS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _GROUPS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ItemMap(("groups",), "groups", ("group_id",)),
}
"""The responses with an error in each item, in all versions or in some."""


def has_field(cls: type[Struct], name: str, version: int) -> bool:
    """Whether ``version`` of a message has a field of this name."""
    return any(field.name == name and carries(field, version) for field in cls.fields_)


def error_response_in_slices(
    key: int, version: int, request: Struct, code: ErrorCode, text: str
) -> Generator[None, None, Struct]:
    """Builds the response of an API to ``request`` with the same error in all its places.

    Raises UnsupportedByVersion if the version of the response has no place for it.
    """
    cls = response_class(key)
    if has_field(cls, ERROR, version) and key not in ERRORS_OF_ITEMS:
        beside = VALUES_BESIDE_ERROR.get(key, {})
        values = {name: value for name, value in beside.items() if has_field(cls, name, version)}
        return cls(**values, **_error(cls, ERROR, version, code, text))
    mapping = ITEM_MAPS.get(key)
    if mapping is None:
        raise UnsupportedByVersion(f"{cls.__name__} v{version} has no field for the error {code.name}")
    results = yield from _results_in_slices(request, mapping, cls, version, code, text)
    return cls(**{mapping.results: results})


def _results_in_slices(
    source: object, mapping: ItemMap, cls: type[Struct], version: int, code: ErrorCode, text: str
) -> Generator[None, None, list[Struct]]:
    result_class = _element(cls, mapping.results)
    inner = mapping.inner
    error = {} if inner is not None else _error(result_class, mapping.error, version, code, text)
    results: list[Struct] = []
    known: set[tuple[object, ...]] = set()
    for number, item in enumerate(_items(source, mapping.items)):
        # An item with an inner list counts as many.
        if inner is not None or number % ITEMS_PER_SLICE == ITEMS_PER_SLICE - 1:
            yield
        values = {**mapping.values, **error, **_identity(item, mapping)}
        if mapping.is_distinct:
            identity = tuple([values[name] for name in mapping.same])
            if identity in known:
                continue
            known.add(identity)
        if inner is not None:
            values[inner.results] = yield from _results_in_slices(
                item, inner, result_class, version, code, text
            )
        results.append(result_class(**values))
    return results


def _items(source: object, paths: tuple[str, ...]) -> Iterator[object]:
    for path in paths:
        outer, _, rest = path.partition(".")
        for item in getattr(source, outer) or ():
            if rest:
                yield from _items(item, (rest,))
            else:
                yield item


def _identity(item: object, mapping: ItemMap) -> dict[str, object]:
    if not isinstance(item, Struct):
        return {mapping.same[0]: item}
    return {name: getattr(item, mapping.names.get(name, name)) for name in mapping.same}


def _error(cls: type[Struct], field: str, version: int, code: ErrorCode, text: str) -> dict[str, object]:
    values: dict[str, object] = {field: code}
    if has_field(cls, ERROR_TEXT, version):
        values[ERROR_TEXT] = text
    return values


def _element(cls: type[Struct], name: str) -> type[Struct]:
    for field in cls.fields_:
        if field.name == name and isinstance(field.element, type):
            return field.element
    raise ValueError(f"{cls.__name__} has no items called {name}")
