"""Messages written by each client are read by every other client, byte for byte, in every compression."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from client_peers import CODECS, KCAT, KCAT_MISSING, PEERS, Message

CLIENTS = [
    pytest.param(name, marks=pytest.mark.skipif(name == "kcat" and KCAT is None, reason=KCAT_MISSING))
    for name in PEERS
]


def messages_to_write() -> list[Message]:
    """Returns messages of every kind: null, empty and large parts, repeated headers, explicit timestamps."""
    now_ms = int(time.time() * 1000)
    noise = random.Random(7).randbytes(300_000)
    repeated = (("trace", b"1"), ("trace", b"2"), ("größe", b"\xff\x00"), ("empty", b""), ("null", None))
    shapes = [
        Message(b"key", b"value", (), now_ms),
        Message(None, b"no key", (), now_ms - 86_400_000),
        Message(b"deleted", None, (("why", b"gone"),), now_ms + 1),
        Message(None, None, (), now_ms + 2),
        Message(b"", b"", (), now_ms),
        Message(bytes(range(256)), bytes(range(255, -1, -1)), repeated, now_ms - 1),
        Message(b"noise", noise, (), now_ms),
        Message(b"long", b"abcdefgh" * 60_000, (), now_ms),
    ]
    return shapes + [Message(b"%d" % n, b"row %d" % n * 20, (), now_ms + n) for n in range(300)]


def messages_for_kcat() -> list[Message]:
    """Returns the messages that kcat can write."""
    shapes = [Message(b"key", b"value"), Message(None, b"no key"), Message(b"deleted", None)]
    shapes += [Message(b"%d" % n, b"row %d" % n * 20) for n in range(300)]
    return [*shapes, Message(b"with", b"headers", (("a", b"1"), ("b", b"2")))]


def writable(writer: str) -> list[Message]:
    """Returns the messages that ``writer`` itself accepts."""
    if writer == "kcat":
        return messages_for_kcat()
    messages = messages_to_write()
    if writer in ("aiokafka", "kafka-python"):
        messages = [message for message in messages if (message.key, message.value) != (None, None)]
    if writer == "kafka-python":
        messages = [
            message._replace(headers=tuple(one for one in message.headers if one[1] is not None))
            for message in messages
        ]
    return messages


def without_times(messages: list[Message]) -> list[Message]:
    return [message._replace(timestamp_ms=0) for message in messages]


def text_headers(messages: list[Message]) -> list[Message]:
    """Removes the header with a binary value: kcat prints it ambiguously."""
    return [message._replace(headers=()) if len(message.headers) > 2 else message for message in messages]


@pytest.mark.parametrize("writer", CLIENTS)
def test_all_clients_read_the_messages_of_each_client(
    bootstrap: str, new_topic: Callable[..., str], writer: str
) -> None:
    topic = new_topic(len(CODECS))
    written = writable(writer)
    for partition, codec in enumerate(CODECS):
        PEERS[writer].write(bootstrap, topic, partition, codec, written)
    counts = dict.fromkeys(range(len(CODECS)), len(written))
    for reader, peer in PEERS.items():
        if reader == "kcat" and KCAT is None:
            continue
        read = peer.read(bootstrap, topic, counts)
        for partition, codec in enumerate(CODECS):
            got, expected = read[partition], written
            if writer == "kcat":
                got = without_times(got)
            if reader == "kcat":
                got, expected = text_headers(got), text_headers(expected)
            assert got == expected, f"{reader} read something else than {writer} wrote with {codec}"
