"""Measures ``tidemill pipeline mirror`` against Apache Kafka's MirrorMaker 2, in turn, from one source.

    python bench/mirror.py [--megabytes 1500] [--rounds 2]

The source is Apache Kafka with a topic of 6 partitions and records of 1 KB. Ours copies it to Tidemill, with
the same offsets; MirrorMaker 2 copies it to another broker of Apache Kafka. The rate is that of the target's
log ends, from the first record to the last: starts of Spark and of Connect are not counted, except in the
row of the time to the last record.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import BUILD, KAFKA_VERSION, Figures, Kafka, Peer, Tidemill, end_in_order, kafka_jars, maven_jars

MEGABYTES = 1500
ROUNDS = 2
PARTITIONS = 6
RECORD_BYTES = 1000
TOPIC = "mirrored"
TIMEOUT_S = 600.0
OURS, MIRRORMAKER = "tidemill", "MirrorMaker 2"
MIRRORMAKER_SETTINGS = """
clusters=source,target
source.bootstrap.servers={source}
target.bootstrap.servers={target}
source->target.enabled=true
target->source.enabled=false
source->target.topics={topic}
tasks.max={partitions}
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
sync.topic.acls.enabled=false
emit.heartbeats.enabled=false
dedicated.mode.enable.internal.rest=false
"""


def fill(bootstrap: str, count: int) -> None:
    """Writes the records to the source."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 200_000,
            "message.timeout.ms": 600_000,
        }
    )
    value = os.urandom(RECORD_BYTES)
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


class Ends:
    """The log ends of a topic, which may not exist yet."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from tidemill.client import Admin, TopicPartition

        self._admin = Admin(bootstrap)
        self._topic = topic
        self._items = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def total(self) -> int:
        """Returns the number of records."""
        if self._topic not in [topic.name for topic in self._admin.list_topics()]:
            return 0
        found = self._admin.list_offsets(dict.fromkeys(self._items, "latest"))
        return sum(place.offset for place in found.values())

    def close(self) -> None:
        """Closes the connections."""
        self._admin.close()


def copied(command: list[str], target: Peer, topic: str, count: int) -> Figures:
    """Runs a copying process; returns bytes a second, and the seconds from its start to the last record."""
    ends = Ends(target.bootstrap, topic)
    begin = time.perf_counter()
    log = target.log_path.with_suffix(".mirror")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        first_s, first = 0.0, 0
        while (seen := ends.total()) < count:
            now_s = time.perf_counter()
            if seen and not first:
                first_s, first = now_s, seen
            if now_s - begin > TIMEOUT_S or process.poll() not in (None, 0):
                raise SystemExit(f"bench: {seen} of {count} records were copied:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        end_s = time.perf_counter()
    finally:
        process.terminate()
        process.wait()
        ends.close()
        log.unlink(missing_ok=True)
    return {
        "bytes_s": (count - first) * RECORD_BYTES / max(0.001, end_s - (first_s or begin)),
        "seconds": end_s - begin,
    }


def with_tidemill(source: Peer, shared: Path, count: int) -> Figures:
    """Returns the figures of our mirror."""
    with Tidemill(shared / "tidemill-bench-mirror") as target, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tidemill", "pipeline", "mirror", "--allow", TOPIC]
        command += ["--source", source.bootstrap, "--target", target.bootstrap, "--master", "local[2]"]
        command += ["--checkpoint", f"{folder}/checkpoint", "--trigger", "available-now"]
        return copied(command, target, TOPIC, count)


def with_mirrormaker(source: Peer, shared: Path, count: int) -> Figures:
    """Returns the figures of MirrorMaker 2."""
    jars = maven_jars(
        BUILD / "kafka" / f"mirror-{KAFKA_VERSION}", f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}"
    )
    with Kafka(shared / "kafka-bench-mirror") as target:
        settings = shared / "kafka-bench-mirror.mm2"
        settings.write_text(
            MIRRORMAKER_SETTINGS.format(
                source=source.bootstrap, target=target.bootstrap, topic=TOPIC, partitions=PARTITIONS
            )
        )
        command = ["java", "-Xms512M", "-Xmx1G", "-cp", f"{jars}/*:{kafka_jars()}/slf4j-simple-1.7.36.jar"]
        command += ["org.apache.kafka.connect.mirror.MirrorMaker", str(settings)]
        try:
            return copied(command, target, f"source.{TOPIC}", count)
        finally:
            settings.unlink()


def compare(megabytes: int = MEGABYTES, rounds: int = ROUNDS) -> dict[str, Figures]:
    """Returns the medians of both."""
    shared = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
    count = megabytes * 1_000_000 // RECORD_BYTES
    measured: dict[str, list[Figures]] = {OURS: [], MIRRORMAKER: []}
    with Kafka(shared / "kafka-bench-mirrored") as source:
        fill(source.bootstrap, count)
        for _ in range(rounds):
            measured[OURS].append(with_tidemill(source, shared, count))
            measured[MIRRORMAKER].append(with_mirrormaker(source, shared, count))
            print(f"mirror: {measured}", file=sys.stderr, flush=True)
    return {
        name: {key: statistics.median(one[key] for one in figures) for key in figures[0]}
        for name, figures in measured.items()
    }


def table_rows(megabytes: int = MEGABYTES, rounds: int = ROUNDS) -> list[str]:
    """Returns lines of the table of ``compare.py``."""
    found = compare(megabytes, rounds)
    ours, other = found[OURS], found[MIRRORMAKER]
    return [
        f"| mirror, records of 1 KB, MB/s, against MirrorMaker 2 | ≥ 2 | {ours['bytes_s'] / 1e6:.0f} "
        f"| {other['bytes_s'] / 1e6:.0f} | {ours['bytes_s'] / other['bytes_s']:.2f} |",
        f"| mirror, {megabytes} MB, from the start to the last record, s | – | {ours['seconds']:.0f} "
        f"| {other['seconds']:.0f} | {ours['seconds'] / other['seconds']:.2f} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    end_in_order()
    print("| axis | goal | Tidemill | against | ratio |\n|---|---|---|---|---|")
    print("\n".join(table_rows(options.megabytes, options.rounds)))


if __name__ == "__main__":
    main()
