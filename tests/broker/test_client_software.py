"""Clients that cannot read old message formats in late versions of Fetch get earlier versions announced."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from test_request_order import Peer, served

from tidemill.broker.client_software import librdkafka_version, misreads_old_formats
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.api_versions import ApiVersionsRequest

FETCH_LAST = 18


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("librdkafka", "2.5.0", (2, 5, 0)),
        ("librdkafka", "v2.15.0-RC1", (2, 15, 0)),
        ("librdkafka", "2.16.0-3-gabcdef-dirty", (2, 16, 0)),
        ("confluent-kafka-python", "2.8.2-rdkafka-2.8.0", (2, 8, 0)),
        ("confluent-kafka-javascript", "1.0.0-librdkafka-2.8.0", (2, 8, 0)),
        ("kcat", "1.7.1-librdkafka-v2.12.1", (2, 12, 1)),
        ("karafka", "v2.4.0-rdkafka-ruby-v0.19.0-librdkafka-v2.8.0", (2, 8, 0)),
        ("confluent-kafka-go", "2.10.1", (2, 10, 1)),
        ("confluent-kafka-dotnet", "2.5.3", (2, 5, 3)),
        ("apache-kafka-java", "4.3.1", None),
        ("tidemill", "2.6.0", None),
        ("ClickHouse", "25.3.1", None),
        ("confluent-kafka-go", "v2", None),
        ("librdkafka", "", None),
    ],
)
def test_the_version_of_librdkafka_is_parsed_from_name_and_version(
    name: str, version: str, expected: tuple[int, int, int] | None
) -> None:
    assert librdkafka_version(name, version) == expected


def test_releases_2_5_to_2_15_misread_old_formats() -> None:
    releases = [(1, 9, 2), (2, 4, 1), (2, 5, 0), (2, 6, 0), (2, 8, 0), (2, 15, 1), (2, 16, 0), (3, 0, 0)]
    affected = [misreads_old_formats(release) for release in releases]
    assert affected == [False, False, True, True, True, True, False, False]


async def fetch_max(peer: Peer, name: str, version: str) -> int:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    peer.send(ApiKey.API_VERSIONS, 3, request)
    answer = await peer.answer(ApiKey.API_VERSIONS, 3)
    (found,) = (one.max_version for one in answer.api_keys if one.api_key == ApiKey.FETCH)
    return int(found)


async def test_fetch_11_is_the_last_version_announced_to_affected_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if "uses librdkafka" in one.getMessage()]

    caplog.set_level(logging.INFO, "tidemill.broker")
    async with served(tmp_path) as (server, _):
        peer = await Peer.of(server)
        assert await fetch_max(peer, "apache-kafka-java", "4.3.1") == FETCH_LAST
        assert await fetch_max(peer, "librdkafka", "2.16.0") == FETCH_LAST
        assert await fetch_max(peer, "librdkafka", "2.4.0") == FETCH_LAST
        assert lines() == []
        for _ in range(3):
            assert await fetch_max(peer, "confluent-kafka-python", "2.8.2-rdkafka-2.8.2") == 11
        (line,) = lines()
        assert "(confluent-kafka-python 2.8.2-rdkafka-2.8.2)" in line
        assert "uses librdkafka 2.8.2, which cannot read message formats v0 and v1" in line
        assert "up to version 11" in line
        assert await fetch_max(peer, "librdkafka", "2.6.0") == 11
        assert "2.6.0" in lines()[1]
        assert "sends Fetch 12 or later whatever the broker announces" in lines()[1]
        other = await Peer.of(server)
        assert await fetch_max(other, "confluent-kafka-python", "2.8.2-rdkafka-2.8.2") == 11
        assert len(lines()) == 2
        await peer.close()
        await other.close()


async def test_the_number_of_logged_clients_is_limited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemill.broker")
    async with served(tmp_path) as (server, _):
        peer = await Peer.of(server)
        for number in range(1100):
            version = f"{number}.{'9' * 300}-librdkafka-2.5.0"
            assert await fetch_max(peer, "x", version) == 11
        await peer.close()
    named = [one.getMessage() for one in caplog.records if "uses librdkafka" in one.getMessage()]
    assert len(named) == 1000
    assert max(map(len, named)) < 500
    assert sum("are not named in the log" in one.getMessage() for one in caplog.records) == 1
