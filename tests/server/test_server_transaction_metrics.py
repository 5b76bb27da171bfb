"""The metrics of a transaction coordinator."""

from __future__ import annotations

import time
import urllib.request

from broker_cluster import until
from prometheus_client.parser import text_string_to_metric_families

from tidemill.client import Admin, NewTopic, Producer
from tidemill.testing import Broker


def metrics(broker: Broker) -> dict[str, float]:
    """The metrics of transactions, without their prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name.removeprefix("tidemill_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("tidemill_transaction")
    }


def test_transactions_are_counted_and_the_oldest_open_one_is_shown() -> None:
    with Broker({"tidemill.metrics.port": "0"}) as broker:
        assert set(metrics(broker).values()) == {0.0}
        with Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1)])
        config = {"transactional.id": "metered"}
        with Producer(broker.bootstrap, config) as producer:
            for _ in range(2):
                with producer.transaction():
                    producer.send("t", b"committed")
            producer.begin()
            producer.send("t", b"aborted")
            producer.flush()
            producer.abort()
            producer.begin()
            producer.send("t", b"open")
            producer.flush()
            began = time.monotonic()
            time.sleep(0.2)
            until(lambda: metrics(broker)["transaction_markers_pending"] == 0, "all markers are written")
            found = metrics(broker)
            assert 0.2 <= found.pop("transaction_oldest_seconds") <= time.monotonic() - began + 5
            assert found == {
                "transactional_ids": 1,
                "transactions_committed_total": 2,
                "transactions_aborted_total": 1,
                "transaction_markers_pending": 0,
            }
            producer.abort()
        until(lambda: metrics(broker)["transactions_aborted_total"] == 2, "the abort is counted")
        assert metrics(broker)["transaction_oldest_seconds"] == 0
