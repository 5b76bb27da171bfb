"""Known APIs that this broker does not serve are refused by their own errors. The connection stays open.

``golden_refusals.jsonl`` has what Apache Kafka 4.3.1's own classes answer: a request, and the response that
its ``getErrorResponse`` makes of UNSUPPORTED_VERSION with the text "no". Requests of versions that Kafka 4
dropped are not among them.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_request_order import Peer, served
from wire_values import message_of

from tidemill.broker.api_registry import APIS, api_for
from tidemill.broker.handlers import not_served
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.net import peer as connections
from tidemill.wire.apis import API, ApiKey, request_class, response_class
from tidemill.wire.codec import decode, encode
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tidemill.wire.messages.describe_quorum import DescribeQuorumRequest
from tidemill.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tidemill.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tidemill.wire.messages.write_txn_markers import WritableTxnMarkerResult
from tidemill.wire.schema import Struct, carries

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden_refusals.jsonl").read_text("utf-8").splitlines()
]
KAFKA_4_3_LAST = 92

REFUSED = [
    (key, version)
    for key, spec in sorted(API.items())
    for version in range(spec.version_min, spec.version_max + 1)
    if key not in APIS or not APIS[key].first <= version <= APIS[key].last
]
"""Every known API and version that is not served."""


async def refusal(key: int, version: int, request: Struct) -> Any:
    broker: Any = SimpleNamespace(apis=APIS)
    listener = connections.Listener("PLAINTEXT", "127.0.0.1", 9092)
    client = connections.Peer(listener, "User:ANONYMOUS", "127.0.0.1", 1)
    context = RequestContext(client, "test", key, version, 1)
    answer = not_served.handle(broker, context, request)
    return await answer if asyncio.iscoroutine(answer) else answer


def comparable(message: Any) -> Any:
    """Removes texts, some of which Kafka leaves out, and topics without partitions. Sorts users."""
    if isinstance(message, AlterUserScramCredentialsResponse):
        message.results.sort(key=lambda one: one.user)
    if isinstance(message, WritableTxnMarkerResult):
        message.topics = [topic for topic in message.topics if topic.partitions]
    for one in message.fields_:
        value = getattr(message, one.name)
        if one.name == "error_message":
            message.error_message = None
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Struct):
                comparable(item)
    return message


async def test_apache_kafka_refuses_with_the_same_responses() -> None:
    for line in LINES:
        key, version = line["key"], line["version"]
        request = decode(request_class(key), version, bytes.fromhex(line["request"]))
        ours = encode(await refusal(key, version, request), version)
        theirs = decode(response_class(key), version, bytes.fromhex(line["response"]))
        assert comparable(decode(response_class(key), version, ours)) == comparable(theirs), line


def test_the_table_has_all_apis_that_are_not_served() -> None:
    from_kafka_4 = {(key, version) for key, version in REFUSED if key not in range(4, 8)}
    dropped = {(38, 0), (39, 0), (40, 0), (41, 0), (56, 0), (56, 1)}
    assert {(line["key"], line["version"]) for line in LINES} == from_kafka_4 - dropped
    assert max(API) == KAFKA_4_3_LAST


def codes(message: Any) -> list[int]:
    """Every error code in a message, inner ones included."""
    found = []
    for one in message.fields_:
        value = getattr(message, one.name)
        if one.name.endswith("error_code"):
            found.append(value)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Struct):
                found += codes(item)
    return found


async def test_an_unserved_request_gets_a_response_and_its_connection_stays_open(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        peer = await Peer.of(server)
        for key, version in REFUSED:
            for number in range(3):
                random_ = random.Random(f"{key} {version} {number}")
                request = message_of(random_, request_class(key), version)
                peer.send(key, version, request)
                answer = await peer.answer(key, version)
                if any(one.name == "error_code" and carries(one, version) for one in answer.fields_):
                    assert ErrorCode.UNSUPPORTED_VERSION in codes(answer), (key, version)
                assert set(codes(answer)) <= {0, ErrorCode.UNSUPPORTED_VERSION}, (key, version)
        peer.send(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        told = {one.api_key for one in (await peer.answer(ApiKey.API_VERSIONS, 0)).api_keys}
        assert told == set(APIS)  # Refused APIs are not announced.
        await peer.close()


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        (ApiKey.DESCRIBE_QUORUM, 2, "as with ZooKeeper: there is no Raft quorum"),
        (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, None),
        (
            ApiKey.SHARE_GROUP_HEARTBEAT,
            1,
            "ShareGroupHeartbeat is not served here: share groups are not served",
        ),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, "use group.protocol=classic"),
    ],
)
def test_a_refusal_has_a_reason(key: int, version: int, text: str | None) -> None:
    request = message_of(random.Random(1), request_class(key), version)
    answer = asyncio.run(refusal(key, version, request))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    if text is not None:
        assert text in answer.error_message


def test_every_unserved_api_has_a_reason() -> None:
    assert set(not_served.REASONS) == set(API) - set(APIS)
    assert not_served.reason(APIS[ApiKey.STOP_REPLICA], ApiKey.STOP_REPLICA, 2) == (
        "StopReplica 2 is not served here: versions 3 to 4 are"
    )


async def frame_of(peer: Peer) -> bytes:
    (size,) = struct.unpack(">i", await peer.reader.readexactly(4))
    return await peer.reader.readexactly(size)


async def test_a_large_unserved_request_does_not_delay_others(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        peer, other = await Peer.of(server), await Peer.of(server)
        users = [ScramCredentialDeletion(name=f"user-{number}", mechanism=1) for number in range(33_000)]
        large = AlterUserScramCredentialsRequest(deletions=users)
        peer.send(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, large)
        longest = 0.0
        refused = asyncio.create_task(frame_of(peer))
        while not refused.done():
            began = asyncio.get_running_loop().time()
            other.send(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            await other.answer(ApiKey.API_VERSIONS, 0)
            longest = max(longest, asyncio.get_running_loop().time() - began)
        _, answer = decode_response(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, await refused)
        results = answer.results  # type: ignore[attr-defined]
        assert len(results) == 33_000
        assert {one.error_code for one in results} == {35}
        assert longest < 0.5
        await peer.close()
        await other.close()


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        (KAFKA_4_3_LAST + 1, 0, "93 is no API key"),
        (-1, 0, "-1 is no API key"),
        (ApiKey.VOTE, 3, "Vote has no version 3: the known versions are 0 to 2"),
        (ApiKey.SHARE_FETCH, 0, "ShareFetch has no version 0"),
        (ApiKey.METADATA, 99, "Metadata has no version 99"),
    ],
)
def test_an_unknown_api_key_or_version_raises_a_protocol_error(key: int, version: int, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        api_for(key, version)


async def test_a_version_outside_of_the_known_range_closes_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        for key, spec in API.items():
            if (
                key == ApiKey.API_VERSIONS
            ):  # The response has version 0, so that a client reads the known versions.
                continue
            for known, unknown in ((spec.version_min, -1), (spec.version_max, spec.version_max + 1)):
                frame = bytearray(encode_request(key, known, 7, "c", request_class(key)()))
                frame[6:8] = struct.pack(">h", unknown)
                peer = await Peer.of(server)
                peer.writer.write(frame)
                peer.writer.write_eof()
                assert await peer.reader.read() == b"", (key, unknown)
                await peer.close()


async def test_a_malformed_unserved_request_closes_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        users = [ScramCredentialDeletion(name="a", mechanism=1)]
        whole = encode_request(51, 0, 7, "c", AlterUserScramCredentialsRequest(deletions=users))
        for cut in (1, 5, 12):
            peer = await Peer.of(server)
            peer.writer.write(struct.pack(">i", len(whole) - 4 - cut) + whole[4:-cut])
            assert await peer.reader.read() == b""
            await peer.close()


def test_each_user_has_one_result() -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="a", mechanism=1)],
        upsertions=[ScramCredentialUpsertion(name=name, mechanism=2) for name in ("b", "a")],
    )
    answer = asyncio.run(refusal(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request))
    assert [(one.user, one.error_code) for one in answer.results] == [("a", 35), ("b", 35)]


# APIs that are served with empty responses, as by Apache Kafka 4.3.1 (compared with the same requests).


async def ask(peer: Peer, key: int, version: int, request: Any) -> Any:
    peer.send(key, version, request)
    return await peer.answer(key, version)


async def test_there_are_no_client_quotas(tmp_path: Path) -> None:
    def component(kind: str, match_type: int = 0, match: str | None = "x") -> ComponentData:
        return ComponentData(entity_type=kind, match_type=match_type, match=match)

    async with served(tmp_path) as (server, _):
        peer = await Peer.of(server)
        for version in (0, 1):
            for good in (
                [],
                [component("user")],
                [component("user", 1, None), component("client-id", 2, None)],
                [component("ip", 0, "1.2.3.4")],
            ):
                request = DescribeClientQuotasRequest(components=good)
                answer = await ask(peer, ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request)
                assert (answer.error_code, answer.error_message, answer.entries) == (0, None, [])
            for bad, code in (
                ([component("")], ErrorCode.INVALID_REQUEST),
                ([component("nonsense")], ErrorCode.UNSUPPORTED_VERSION),
                ([component("user"), component("user")], ErrorCode.INVALID_REQUEST),
                ([component("user", 7)], ErrorCode.INVALID_REQUEST),
                ([component("user", 0, None)], ErrorCode.INVALID_REQUEST),
                ([component("user", 1, "x")], ErrorCode.INVALID_REQUEST),
                ([component("user"), component("ip")], ErrorCode.INVALID_REQUEST),
            ):
                request = DescribeClientQuotasRequest(components=bad)
                answer = await ask(peer, ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request)
                assert (answer.error_code, answer.entries) == (code, None)
                assert answer.error_message
        await peer.close()


async def test_there_are_no_scram_credentials(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        peer, key = await Peer.of(server), ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
        for users in (None, []):
            answer = await ask(peer, key, 0, DescribeUserScramCredentialsRequest(users=users))
            assert (answer.error_code, answer.results) == (0, [])
        named = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in "uvu"])
        answer = await ask(peer, key, 0, named)
        assert answer.error_code == 0
        assert [(one.user, one.error_code) for one in answer.results] == [
            ("u", ErrorCode.DUPLICATE_RESOURCE),
            ("v", ErrorCode.RESOURCE_NOT_FOUND),
        ]
        await peer.close()


async def test_a_feature_that_cannot_change_is_refused_with_invalid_update_version(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        peer, key = await Peer.of(server), ApiKey.UPDATE_FEATURES
        for version in range(3):
            for name, level in (
                ("transaction.version", 3),
                ("group.version", 1),
                ("group.version", -1),
                ("metadata.version", 30),
                ("nonsense", 0),
            ):
                wanted = [
                    FeatureUpdateKey(feature="group.version", max_version_level=0),
                    FeatureUpdateKey(feature=name, max_version_level=level),
                ]
                answer = await ask(peer, key, version, UpdateFeaturesRequest(feature_updates=wanted))
                assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
                assert name in answer.error_message
                assert answer.results == []
            same = [FeatureUpdateKey(feature="group.version", max_version_level=0)]
            answer = await ask(peer, key, version, UpdateFeaturesRequest(feature_updates=same))
            assert (answer.error_code, answer.error_message) == (0, None)
            told = [(one.feature, one.error_code) for one in answer.results]
            assert told == ([("group.version", 0)] if version < 2 else [])
            nothing = await ask(peer, key, version, UpdateFeaturesRequest(feature_updates=[]))
            assert nothing.error_code == 0
        await peer.close()


async def test_describe_quorum_is_refused_as_by_a_zookeeper_cluster(tmp_path: Path) -> None:
    """It is not announced. A client that sends it without ApiVersions gets the same error."""

    async with served(tmp_path) as (server, _):
        peer = await Peer.of(server)
        for version in range(3):
            answer = await ask(peer, ApiKey.DESCRIBE_QUORUM, version, DescribeQuorumRequest(topics=[]))
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert answer.topics == []
        await peer.close()
