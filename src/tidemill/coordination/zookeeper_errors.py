"""What ZooKeeper says when it refuses, in the words of the port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as zk

from tidemill.coordination.port import (
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
    """The outcomes; raises the error of the first operation that could not be done."""
    if len(outcomes) == len(operations) and not any(isinstance(one, Exception) for one in outcomes):
        return outcomes
    for index, (operation, outcome) in enumerate(zip(operations, outcomes, strict=False)):
        # The others of a failed transaction say that it was rolled back, or not tried.
        if isinstance(outcome, zk.RolledBackError | zk.RuntimeInconsistency):
            continue
        if isinstance(outcome, Exception):
            raise operation_error(operation, index, outcome)
    if len(outcomes) != len(operations):
        raise StoreError(f"ZooKeeper answered {len(outcomes)} results to {len(operations)} operations")
    return outcomes


def operation_error(operation: Operation, index: int, error: Exception) -> StoreError:
    """Why the operation at that place of a transaction could not be done."""
    path = operation.path
    if isinstance(error, zk.NoNodeError):
        if isinstance(operation, Create):
            return NoNode(parent_of(path), index, f"{path} cannot be made without it")
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
    """Why a node could not be read."""
    if isinstance(error, zk.NoNodeError):
        return NoNode(path)
    if isinstance(error, zk.NoAuthError):
        return NoAccess(path)
    return call_error(error)


def is_loss(error: Any) -> bool:
    """Whether the error is the connection's, not the node's."""
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
    """Why a call was not answered."""
    if isinstance(error, zk.SessionExpiredError) and not isinstance(error, zk.ConnectionClosedError):
        return lost_error(is_expired=True)
    if is_loss(error) or isinstance(error, zk.AuthFailedError):
        return lost_error(is_expired=False)
    return StoreError(f"ZooKeeper refused a call: {explain(error)}")


def lost_error(is_expired: bool) -> StoreUnavailable:
    """What callers are told when the connection, or the session with it, is lost."""
    if is_expired:
        return SessionExpired("the session with ZooKeeper has expired; its nodes are gone")
    return StoreUnavailable("the connection to ZooKeeper was lost; whether the call was done is not known")


def explain(error: BaseException) -> str:
    """What ZooKeeper said, in a few words, with the next step where there is one."""
    if isinstance(error, zk.InvalidACLError):
        return "it takes no access list from a session that did not log in (zookeeper.set.acl)"
    if isinstance(error, zk.NoAuthError):
        return "this login may not do that"
    if isinstance(error, zk.SessionClosedRequireSaslError):
        return (
            "it serves only who logs in: set tidemill.zookeeper.sasl.mechanism or tidemill.zookeeper.digest"
        )
    if isinstance(error, zk.UnimplementedError):
        return "the server lacks a request that is needed: use ZooKeeper 3.6 or later"
    name = type(error).__name__.removesuffix("Error")
    return f"{name} ({error})" if str(error) else name
