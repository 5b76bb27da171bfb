"""SCAFFOLD"""
from __future__ import annotations


def make_topics(bootstrap: str, names: list[str], partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic
    a = AdminClient({"bootstrap.servers": bootstrap})
    for f in a.create_topics([NewTopic(n, partitions, config={"retention.ms": "-1"}) for n in names]).values():
        f.result()
