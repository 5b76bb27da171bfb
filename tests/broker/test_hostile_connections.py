"""Thousands of silent or slow connections, and the limits for connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hostile_frames import framed, produce_frame
from hostile_peers import Peer, check_log, fetch_request, make_topic, under_attack

from tidemill.records.builder import BatchBuilder
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.metadata import MetadataRequest

CROWD = 1000
KB_EACH_MAX = 30
"""The limit for the memory of a connection without requests."""

HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker for tests without permanent changes."""
    with Broker() as one:
        yield one
        check_log(one)


@contextlib.contextmanager
def open_connections(broker: Broker, count: int = CROWD) -> Iterator[list[socket.socket]]:
    """Opens ``count`` connections."""
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = socket.create_connection((broker.host, broker.port), timeout=10)
            peers.append(stack.enter_context(contextlib.closing(peer)))
        yield peers


def test_a_thousand_silent_connections_do_not_disturb_others(broker: Broker) -> None:
    with under_attack(broker, CROWD * KB_EACH_MAX / 1024) as client, open_connections(broker):
        before = client.rounds
        time.sleep(2)
        assert client.rounds > before


def test_a_thousand_slow_connections_do_not_disturb_others(broker: Broker) -> None:
    frame = encode_request(ApiKey.METADATA, 1, 7, "slow", MetadataRequest(topics=[]))
    with under_attack(broker, CROWD * KB_EACH_MAX / 1024) as client, open_connections(broker) as peers:
        before = client.rounds
        for byte in frame[:6]:
            began = time.monotonic()
            for peer in peers:
                peer.sendall(bytes([byte]))
            time.sleep(max(0.0, 1 - (time.monotonic() - began)))
        assert client.rounds > before
        for peer in peers[::100]:  # A slow but complete request is answered.
            peer.sendall(frame[6:])
            (size, correlation_id) = struct.unpack(">ii", peer.recv(8))
            assert (size > 4, correlation_id) == (True, 7)


def test_delayed_fetches_end_with_their_connections(broker: Broker) -> None:
    topic_id = make_topic(broker, "waited-for")
    frame = encode_request(ApiKey.FETCH, 17, 1, "waiting", fetch_request(topic_id, 0, 0x7FFFFFFF))
    with under_attack(broker, 60):
        for _ in range(5):
            with open_connections(broker, 400) as peers:
                for peer in peers:
                    peer.sendall(frame)


def test_max_connections_limits_connections(broker: Broker) -> None:
    with Broker({"max.connections": 5}) as small:
        peers = [Peer(small) for _ in range(5)]
        for peer in peers:
            peer.ask(ApiKey.API_VERSIONS, 3, HELLO)
        with Peer(small) as sixth:
            assert sixth.is_closed()
        for peer in peers:
            peer.ask(ApiKey.API_VERSIONS, 3, HELLO)
        peers.pop().close()
        deadline = time.monotonic() + 10
        while True:
            with Peer(small) as again:
                try:
                    again.ask(ApiKey.API_VERSIONS, 3, HELLO)
                    break
                except ConnectionError:
                    assert time.monotonic() < deadline
        assert "max.connections=5 are open" in small.log
        for peer in peers:
            peer.close()
        check_log(small)


def test_max_connections_per_ip_limits_connections(broker: Broker) -> None:
    limits = {"max.connections.per.ip": 2, "max.connections.per.ip.overrides": "127.0.0.2:3,127.0.0.3:0"}
    with Broker(limits) as small, contextlib.ExitStack() as stack:

        def is_accepted(address: str) -> bool:
            peer = socket.create_connection((small.host, small.port), 10, source_address=(address, 0))
            stack.enter_context(contextlib.closing(peer))
            peer.sendall(encode_request(ApiKey.API_VERSIONS, 0, 1, None, ApiVersionsRequest()))
            try:
                return len(peer.recv(4)) == 4
            except ConnectionError:
                return False

        assert [is_accepted("127.0.0.1") for _ in range(4)] == [True, True, False, False]
        assert [is_accepted("127.0.0.2") for _ in range(4)] == [True, True, True, False]
        assert not is_accepted("127.0.0.3")
        assert is_accepted("127.0.0.4")
        check_log(small)


def test_idle_connections_are_closed_unless_they_wait(broker: Broker) -> None:
    with Broker({"connections.max.idle.ms": 1000}) as small:
        topic_id = make_topic(small, "t")
        with Peer(small) as silent, Peer(small) as busy, Peer(small) as half, Peer(small) as waiting:
            half.socket.sendall(b"\0\0\0\x20abc")
            waiting.correlation_id = 1
            waiting.socket.sendall(
                encode_request(ApiKey.FETCH, 17, 1, "waiting", fetch_request(topic_id, 0, 4000))
            )
            began = time.monotonic()
            while time.monotonic() - began < 2.5:
                busy.ask(ApiKey.API_VERSIONS, 3, HELLO)
                time.sleep(0.1)
            assert silent.is_closed(1)
            assert half.is_closed(1)
            busy.ask(ApiKey.API_VERSIONS, 3, HELLO)
            assert waiting.answer(ApiKey.FETCH, 17).error_code == 0
        check_log(small)


def test_a_frame_above_the_limit_closes_its_connection_at_once(broker: Broker) -> None:
    with Broker({"socket.request.max.bytes": 5000}) as small:
        with Peer(small) as peer:
            peer.ask(ApiKey.API_VERSIONS, 3, HELLO)
            peer.socket.sendall(framed(bytes(5001))[:100])
            assert peer.is_closed()
        with Peer(small) as peer:
            peer.socket.sendall(framed(struct.pack(">hhih", 18, 0, 1, 3000) + bytes(3000)))
            assert len(peer.frame()) > 20
        assert "5001 bytes was announced, 0 to 5000 are allowed (socket.request.max.bytes)" in small.log
        check_log(small)


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 104857601])
def test_a_wrong_length_closes_the_connection_without_memory(broker: Broker, size: int) -> None:
    with under_attack(broker, 10):
        for _ in range(20):
            with Peer(broker) as peer:
                peer.socket.sendall(struct.pack(">i", size) + b"x" * 100)
                assert peer.is_closed()


def test_incomplete_large_frames_use_memory_for_received_bytes_only(broker: Broker) -> None:
    with under_attack(broker, 20), open_connections(broker, 200) as peers:
        for peer in peers:
            peer.sendall(struct.pack(">i", 100_000_000) + bytes(30_000))
        time.sleep(0.5)


def test_deep_pipelines_are_answered_completely_and_in_order(broker: Broker) -> None:
    count = 20_000
    with under_attack(broker, 60), Peer(broker) as peer:
        request = b"".join(
            [
                encode_request(ApiKey.API_VERSIONS, 0, number, None, ApiVersionsRequest())
                for number in range(count)
            ]
        )
        sending = threading.Thread(target=peer.socket.sendall, args=(request,), daemon=True)
        sending.start()
        for number in range(count):
            (found,) = struct.unpack(">i", peer.frame()[:4])
            assert found == number
        sending.join(10)


def test_unread_responses_of_a_pipeline_do_not_accumulate(broker: Broker) -> None:
    frame = encode_request(ApiKey.API_VERSIONS, 0, 1, None, ApiVersionsRequest())
    # The broker handles requests of a client for some milliseconds at a time: others wait a few turns.
    with under_attack(broker, 60, 1.0), open_connections(broker, 5) as peers:
        for peer in peers:
            peer.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                for _ in range(100):
                    peer.sendall(frame * 5000)


def test_an_unread_large_fetch_response_is_not_in_memory(broker: Broker) -> None:
    topic_id = make_topic(broker, "much")
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, bytes(900_000))
    batch = builder.build()
    with Peer(broker) as peer:
        for _ in range(20):
            peer.socket.sendall(produce_frame(13, "much", topic_id, batch, 1, 1))
            peer.frame()
    request = fetch_request(topic_id, 0)
    request.topics[0].partitions[0].partition_max_bytes = 50 << 20
    frame = encode_request(ApiKey.FETCH, 17, 1, "deaf", request)
    with under_attack(broker, 30), open_connections(broker, 100) as peers:
        for peer in peers:
            peer.sendall(frame * 20)
        time.sleep(1)


def test_slow_frames_stay_within_the_memory_limit(broker: Broker) -> None:
    count, size = 300, 1_000_000
    with Broker({"queued.max.request.bytes": 20_000_000, "message.max.bytes": 2_000_000}) as small:
        topic_id = make_topic(small, "slow")
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, bytes(size - 1000))
        frame = produce_frame(13, "slow", topic_id, builder.build(), 1, 1)
        with under_attack(small, 100), open_connections(small, count) as peers:
            left = {peer: memoryview(frame) for peer in peers}
            for peer in peers:
                peer.setblocking(False)
            deadline = time.monotonic() + 120
            while left:
                assert time.monotonic() < deadline, f"{len(left)} frames are not through"
                for peer in list(left):
                    with contextlib.suppress(BlockingIOError):
                        left[peer] = left[peer][peer.send(left[peer][:30_000]) :]
                        if not left[peer]:
                            del left[peer]
            for peer in peers:
                peer.settimeout(60)
                (length, correlation_id) = struct.unpack(">ii", peer.recv(8, socket.MSG_WAITALL))
                assert (length > 4, correlation_id) == (True, 1)
        check_log(small)
