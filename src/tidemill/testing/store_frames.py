"""The frames of ZooKeeper's protocol: operation and error numbers, and the encoding of fields.

A frame is ``INT32 size`` and that many bytes; strings and byte strings have an ``INT32`` length, -1 for null.

========  ===================================================================================================
request   INT32 xid (-2 ping, -4 auth, -8 set watches), INT32 operation, its fields
response  INT32 xid, INT64 zxid, INT32 error; without an error the fields of the operation
event     the same with xid -1, then INT32 kind (1 to 4), INT32 state (3: connected), STRING path
connect   INT32 version, INT64 last zxid seen, INT32 timeout in ms, INT64 session, BYTES password, BOOL
response  INT32 version, INT32 timeout in ms (0: the session has expired), INT64 session, BYTES, BOOL
========  ===================================================================================================

Source: ``zookeeper.jute`` of ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

FRAME_BYTES_MAX: Final = 1024 * 1024 - 1
"""``jute.maxbuffer``: a connection that sends a larger frame is closed."""
PASSWORD: Final = bytes(16)

NOTIFICATION_XID: Final = -1
CONNECTED_STATE: Final = 3


class Op(IntEnum):
    """Operations, by ZooKeeper's numbers."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    CREATE_SESSION = -10
    CLOSE_SESSION = -11


WRITES: Final = frozenset({Op.CREATE, Op.DELETE, Op.SET_DATA, Op.MULTI, Op.CREATE2, Op.CLOSE_SESSION})
"""Operations that change the tree, and have to be in the journal."""


class Code(IntEnum):
    """Errors, by ZooKeeper's numbers."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    NO_WATCHER = -121


INT32: Final = struct.Struct(">i")
REPLY: Final = struct.Struct(">iqi")
EVENT: Final = struct.Struct(">iqiii")
MULTI: Final = struct.Struct(">iBi")
STAT: Final = struct.Struct(">qqqqiiiqiiq")
MULTI_END: Final = MULTI.pack(-1, True, -1)


class BadFrame(Exception):
    """The bytes are not a request of ZooKeeper's protocol."""


class Refused(Exception):
    """The response to the request is an error."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class Reader:
    """Reads fields from a frame. Raises BadFrame where the frame is too short."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def _read(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise BadFrame(f"a field of {count} bytes at {self.position}, of {len(self.data)}")
        data_read = self.data[self.position : end]
        self.position = end
        return data_read

    def int32(self) -> int:
        """Reads a signed integer of four bytes."""
        return int.from_bytes(self._read(4), "big", signed=True)

    def int64(self) -> int:
        """Reads a signed integer of eight bytes."""
        return int.from_bytes(self._read(8), "big", signed=True)

    def boolean(self) -> bool:
        """Reads a boolean of one byte."""
        return self._read(1) != b"\0"

    def buffer(self) -> bytes:
        """Reads a byte string; null becomes empty."""
        count = self.int32()
        return self._read(count) if count > 0 else b""

    def text(self) -> str:
        """Reads a string."""
        try:
            return self.buffer().decode()
        except UnicodeDecodeError:
            raise BadFrame("a string is not UTF-8") from None

    def texts(self) -> list[str]:
        """Reads a list of strings, each of at least four bytes."""
        count = self.int32()
        if count > len(self.data) // 4:
            raise BadFrame(f"a list of {count} strings in {len(self.data)} bytes")
        return [self.text() for _ in range(count)]

    def skip_acl(self) -> None:
        """Skips an access list."""
        for _ in range(self.int32()):
            self.int32()
            self.text()
            self.text()


def text_bytes(text: str) -> bytes:
    """Encodes a string."""
    return buffer_bytes(text.encode())


def buffer_bytes(data: bytes) -> bytes:
    """Encodes a byte string."""
    return INT32.pack(len(data)) + data
