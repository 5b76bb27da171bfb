"""Producer, consumer, admin and range reader: synchronous, for any cluster that speaks the Kafka protocol.

The names below are imported on first use, so that a program loads only the modules that it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.client.admin import Admin
    from tidemill.client.admin_types import ConfigResource, NewTopic, ResourceType
    from tidemill.client.completed_fetch import ConsumerRecord, ConsumerRecords
    from tidemill.client.consumer import Consumer
    from tidemill.client.errors import (
        AbortableTransactionError,
        ClientError,
        FatalTransactionError,
        ProducerFenced,
    )
    from tidemill.client.producer import Delivery, Producer, RecordMetadata
    from tidemill.client.range_reader import RangeReader
    from tidemill.client.subscription_state import RebalanceListener
    from tidemill.client.transaction_manager import ConsumerGroupMetadata, PreparedTransaction
    from tidemill.model.types import TopicPartition

_MODULES = {
    "AbortableTransactionError": "errors",
    "Admin": "admin",
    "ClientError": "errors",
    "ConfigResource": "admin_types",
    "Consumer": "consumer",
    "ConsumerGroupMetadata": "transaction_manager",
    "ConsumerRecord": "completed_fetch",
    "ConsumerRecords": "completed_fetch",
    "Delivery": "producer",
    "FatalTransactionError": "errors",
    "NewTopic": "admin_types",
    "PreparedTransaction": "transaction_manager",
    "Producer": "producer",
    "ProducerFenced": "errors",
    "RangeReader": "range_reader",
    "RebalanceListener": "subscription_state",
    "RecordMetadata": "producer",
    "ResourceType": "admin_types",
}

__all__ = [
    "AbortableTransactionError",
    "Admin",
    "ClientError",
    "ConfigResource",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "ConsumerRecords",
    "Delivery",
    "FatalTransactionError",
    "NewTopic",
    "PreparedTransaction",
    "Producer",
    "ProducerFenced",
    "RangeReader",
    "RebalanceListener",
    "RecordMetadata",
    "ResourceType",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    if name == "TopicPartition":
        from tidemill.model.types import TopicPartition

        return TopicPartition
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """Lists the public names for completion, without imports and submodules."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
