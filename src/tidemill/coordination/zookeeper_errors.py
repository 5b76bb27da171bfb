"""Translates ZooKeeper's errors into those of the store's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as zk

from tidemill.coordination.coordination_store import (
    BadVersion,
    Create,
    NoAccess,
    NoChildren,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationError,
    SessionExpired,
    StoreError,
    StoreUnavailable,
    parent_of,
)


def checked(operations: Sequence[Operation], outcomes: list[Any]) -> list[Any]:
    """Returns the outcomes; raises the error of the first operation that failed."""
    if len(outcomes) == len(operations) and not any(isinstance(outcome, Exception) for outcome in outcomes):
        return outcomes
    for index, (operation, outcome) in enumerate(zip(operations, outcomes, strict=False)):
        # The other operations of a failed transaction report that they were rolled back, or not tried.
        if isinstance(outcome, zk.RolledBackError | zk.RuntimeInconsistency):
            continue
        if isinstance(outcome, Exception):
            raise operation_error(operation, index, outcome)
    if len(outcomes) != len(operations):
        raise StoreError(f"ZooKeeper returned {len(outcomes)} results for {len(operations)} operations")
    return outcomes


def operation_error(operation: Operation, index: int, error: Exception) -> StoreError:
    """Returns the error of the operation at that index of a transaction."""
    path = operation.path
    if isinstance(error, zk.NoNodeError):
        if isinstance(operation, Create):
            return NoNode(parent_of(path), index, f"{path} cannot be created without it")
        return NoNode(path, index)
    if isinstance(error, zk.BadVersionError) and not isinstance(operation, Create):
        return BadVersion(path, index, f"it is not at {operation.version}")
    if isinstance(error, zk.NodeExistsError):
        return NodeExists(path, index)
    if isinstance(error, zk.NotEmptyError):
        return NotEmpty(path, index)
    if isinstance(error, zk.NoChildrenForEphemeralsError):
        return NoChildren(path, index)
    if isinstance(error, zk.NoAuthError):
        return NoAccess(path, index)
    if is_loss(error):
        return call_error(error)
    return OperationError(path, index, explain(error))


def read_error(path: str, error: Exception) -> StoreError:
    """Returns the error of a read."""
    if isinstance(error, zk.NoNodeError):
        return NoNode(path)
    if isinstance(error, zk.NoAuthError):
        return NoAccess(path)
    return call_error(error)


def is_loss(error: Any) -> bool:
    """Whether the error concerns the connection, not the node."""
    return isinstance(
        error,
        zk.ConnectionLoss
        | zk.OperationTimeoutError
        | zk.SessionExpiredError
        | zk.SessionMovedError
        | zk.RequestTimeoutError
        | zk.ThrottledOpError,
    )


def call_error(error: BaseException) -> StoreError:
    """Returns the error of a call without a response."""
    if isinstance(error, zk.SessionExpiredError) and not isinstance(error, zk.ConnectionClosedError):
        return lost_error(is_expired=True)
    if is_loss(error) or isinstance(error, zk.AuthFailedError):
        return lost_error(is_expired=False)
    return StoreError(f"ZooKeeper refused a call: {explain(error)}")


def lost_error(is_expired: bool) -> StoreUnavailable:
    """Returns the error for callers when the connection, or the session with it, is lost."""
    if is_expired:
        return SessionExpired("the session with ZooKeeper has expired; its nodes are deleted")
    return StoreUnavailable("the connection to ZooKeeper was lost; the call may or may not have been applied")


def explain(error: BaseException) -> str:
    """Describes ZooKeeper's error in a few words, with the next step where there is one."""
    if isinstance(error, zk.InvalidACLError):
        return "it accepts no access list from a session without a login (zookeeper.set.acl)"
    if isinstance(error, zk.NoAuthError):
        return "this login lacks the permission"
    if isinstance(error, zk.SessionClosedRequireSaslError):
        return "it requires a login: set tidemill.zookeeper.sasl.mechanism or tidemill.zookeeper.digest"
    if isinstance(error, zk.UnimplementedError):
        return "the server does not support a required request: use ZooKeeper 3.6 or later"
    name = type(error).__name__.removesuffix("Error")
    return f"{name} ({error})" if str(error) else name
