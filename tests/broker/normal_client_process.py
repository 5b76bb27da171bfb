"""The process of a normal client: ``HOST PORT PID TOPIC TOPIC_ID``, with the broker's process id.

A process of its own, because work of the test would delay a thread of the test. It answers each line of its
input with a report in one line of JSON, and ends with its input. The first report follows the first round.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback

from hostile_frames import produce_frame
from hostile_peers import Peer, fetch_request

from tidemill.records.builder import BatchBuilder
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

BROKER_SCHEDSTAT = "/proc/{}/schedstat"
OWN_SCHEDSTAT = "/proc/thread-self/schedstat"
PAUSE_S = 0.002


def queue_s(path: str) -> float:
    """Returns how long a thread was ready to run and had no processor; 0 where the system does not tell."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


class Client(threading.Thread):
    """Checks each response of the broker, and measures how long the broker makes it wait.

    The time for which the event loop of the broker, or this thread, waits for a processor does not count:
    other programs of the machine cause it.
    """

    def __init__(self, address: tuple[str, int], broker_pid: int, topic: str, topic_id: bytes) -> None:
        super().__init__(name="client_thread", daemon=True)
        self.topic = topic
        self.topic_id = topic_id
        self.peer = Peer(address)
        self.rounds = 0
        self.slowest_s = 0.0
        self.problem: str | None = None
        self.has_begun = threading.Event()
        self.ending = threading.Event()
        self.broker_schedstat = BROKER_SCHEDSTAT.format(broker_pid)

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                began = self.now_s()
                self.round()
                self.slowest_s = max(self.slowest_s, self.now_s() - began)
                self.has_begun.set()
                time.sleep(PAUSE_S)
        except BaseException:  # noqa: BLE001 - the test reports it
            self.problem = traceback.format_exc()
        finally:
            self.has_begun.set()

    def now_s(self) -> float:
        """Returns the time, less that in which this thread or the event loop was waiting for a processor."""
        return time.monotonic() - queue_s(self.broker_schedstat) - queue_s(OWN_SCHEDSTAT)

    def round(self) -> None:
        """Requests the metadata of the topic, writes a message, and reads it."""
        peer = self.peer
        wanted = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=False
        )
        (found,) = peer.ask(ApiKey.METADATA, 12, wanted).topics
        assert (found.error_code, found.topic_id, len(found.partitions)) == (0, self.topic_id, 1)
        value = b"message %d" % self.rounds
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, value)
        peer.correlation_id += 1
        peer.socket.sendall(
            produce_frame(13, self.topic, self.topic_id, builder.build(), 1, peer.correlation_id)
        )
        (part,) = peer.answer(ApiKey.PRODUCE, 13).responses[0].partition_responses
        assert (part.error_code, part.base_offset) == (0, self.rounds)
        (topic,) = peer.ask(ApiKey.FETCH, 17, fetch_request(self.topic_id, self.rounds)).responses
        assert topic.partitions[0].records.endswith(value + b"\0")
        self.rounds += 1

    def report(self) -> None:
        """Writes a line of JSON."""
        found = {"rounds": self.rounds, "slowest_s": self.slowest_s, "problem": self.problem}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def main(host: str, port: str, broker_pid: str, topic: str, topic_id: str) -> None:
    """Runs the client until the end of the input."""
    client = Client((host, int(port)), int(broker_pid), topic, bytes.fromhex(topic_id))
    client.start()
    client.has_begun.wait()
    client.report()
    for _ in sys.stdin:
        client.report()
    client.ending.set()
    client.join(30)
    if client.is_alive():
        client.problem = "the normal client waits for an answer"
    client.report()


if __name__ == "__main__":
    main(*sys.argv[1:])
