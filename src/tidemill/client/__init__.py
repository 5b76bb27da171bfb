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
        ClientClosed,
        ClientError,
        FatalTransactionError,
        ProducerFenced,
        RequestTimeout,
    )
    from tidemill.client.producer import Delivery, Producer, RecordMetadata
    from tidemill.client.range_reader import RangeReader
    from tidemill.client.subscription_state import RebalanceListener
    from tidemill.client.transaction_manager import ConsumerGroupMetadata, PreparedTransaction
    from tidemill.model.errors import ConfigError
    from tidemill.model.types import TopicPartition

_MODULES = {
    "AbortableTransactionError": "tidemill.client.errors",
    "Admin": "tidemill.client.admin",
    "ClientClosed": "tidemill.client.errors",
    "ClientError": "tidemill.client.errors",
    "ConfigError": "tidemill.model.errors",
    "ConfigResource": "tidemill.client.admin_types",
    "Consumer": "tidemill.client.consumer",
    "ConsumerGroupMetadata": "tidemill.client.transaction_manager",
    "ConsumerRecord": "tidemill.client.completed_fetch",
    "ConsumerRecords": "tidemill.client.completed_fetch",
    "Delivery": "tidemill.client.producer",
    "FatalTransactionError": "tidemill.client.errors",
    "NewTopic": "tidemill.client.admin_types",
    "PreparedTransaction": "tidemill.client.transaction_manager",
    "Producer": "tidemill.client.producer",
    "ProducerFenced": "tidemill.client.errors",
    "RangeReader": "tidemill.client.range_reader",
    "RebalanceListener": "tidemill.client.subscription_state",
    "RecordMetadata": "tidemill.client.producer",
    "RequestTimeout": "tidemill.client.errors",
    "ResourceType": "tidemill.client.admin_types",
    "TopicPartition": "tidemill.model.types",
}

__all__ = [
    "AbortableTransactionError",
    "Admin",
    "ClientClosed",
    "ClientError",
    "ConfigError",
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
    "RequestTimeout",
    "ResourceType",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    """Lists the public names for completion, without imports and submodules."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
