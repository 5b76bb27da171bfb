"""Splits received bytes into length-prefixed frames. No I/O. Compiled.

    frame = size i32, then ``size`` bytes

The accepted connection, the dialled link and the client use this reader. A frame is a pair of positions in
the ``bytes`` that hold it. A frame that arrived in one piece is not copied; of a frame that arrived in
several pieces, a short one is joined from them, and a long one is written into a buffer that grows: to join
it would stop the event loop, and take its memory twice. The announced size allocates nothing: memory grows
with the bytes that have arrived.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from tidemill.model.errors import ProtocolError

NEED_DATA: Final[i64] = -1
"""Returned in place of a position: the next frame is not complete."""
SIZE_BYTES: Final[i64] = 4

JOINED_BYTES_MAX: Final[i64] = 4 * 1024 * 1024
"""The size of the longest frame that is joined from its pieces. A growing buffer copies bytes more often."""
PIECE_BYTES_MIN: Final[i64] = 4096
"""A piece shorter than this is extended by the next one: single bytes of a peer do not make a long list."""

OTHER_PROTOCOLS = {
    b"\x16\x03": "a TLS handshake",
    b"GET ": "an HTTP request",
    b"HEAD": "an HTTP request",
    b"POST": "an HTTP request",
}
"""The first bytes of other protocols, which are then read as the size of a frame."""


class FrameSizeError(ProtocolError):
    """A frame announces a size outside of the limits."""

    def __init__(self, size: int, size_min: int, size_max: int, what: str, setting: str) -> None:
        limit = f" ({setting})" if setting else ""
        text = f"{what} of {size} bytes was announced, {size_min} to {size_max} are allowed{limit}"
        received = (size & 0xFFFFFFFF).to_bytes(4, "big")
        for start, protocol in OTHER_PROTOCOLS.items():
            if received.startswith(start):
                text += f"; these are the first bytes of {protocol}"
        super().__init__(text)
        self.size = size


class _Pieces:
    """The pieces of a short frame."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Adds the next piece."""
        pieces = self.pieces
        last: i64 = len(pieces) - 1
        if last >= 0 and len(pieces[last]) < PIECE_BYTES_MIN:
            pieces[last] += data
        else:
            pieces.append(data)

    def getvalue(self) -> bytes:
        """Returns all the pieces as one."""
        return b"".join(self.pieces)


class FrameReader:
    """The received bytes of one connection.

    ``receive`` takes bytes; ``next_frame`` returns where the next frame starts in :attr:`data`, and sets
    :attr:`end`; ``consume`` passes over it. Once no complete frame is left, only the start of an incomplete
    frame stays in memory.
    """

    def __init__(
        self, size_min: i64, size_max: i64, what: str, setting: str = "", preallocated_max: i64 = 0
    ) -> None:
        """``what`` names a frame, and ``setting`` the key of its limit, in the text of a FrameSizeError.

        The memory of an incomplete frame of up to ``preallocated_max`` bytes is allocated at once: only for
        peers whose announced sizes are trusted.
        """
        self.size_min: i64 = size_min
        self.size_max: i64 = size_max
        self.what = what
        self.setting = setting
        self.preallocated_max: i64 = preallocated_max
        self.data: bytes = b""
        """The bytes that contain the frames."""
        self.position: i64 = 0
        """The bytes before this position were consumed."""
        self.end: i64 = 0
        """The end of the frame that :meth:`next_frame` returned last."""
        self._size: i64 = -1
        """The size of the next frame, once its size field is consumed; else -1."""
        self._partial: _Pieces | BytesIO = _Pieces()
        self._partial_bytes: i64 = 0

    @property
    def held_bytes(self) -> i64:
        """The bytes in memory, including consumed frames that are not released yet."""
        return len(self.data) + self._partial_bytes

    @property
    def unread_bytes(self) -> i64:
        """The bytes in :attr:`data` that were not consumed: usually complete frames that wait."""
        return len(self.data) - self.position

    @property
    def has_partial(self) -> bool:
        """Whether :meth:`next_frame` found a part of a frame, and its end was not received yet."""
        return self._partial_bytes > 0 or self._size >= 0

    @property
    def missing_bytes(self) -> i64:
        """The number of bytes that complete the size field, or the frame if its size is known."""
        needed: i64 = SIZE_BYTES if self._size < 0 else self._size
        return needed - self._partial_bytes

    def receive(self, data: bytes) -> None:
        """Adds received bytes."""
        if self.position < len(self.data):
            self.data = self.data[self.position :] + data
            self.position = 0
            return
        if self._partial_bytes > 0:
            partial = self._partial
            partial.write(data)
            self._partial_bytes += len(data)
            if self.missing_bytes > 0:
                return
            data = partial.getvalue()  # A buffer does not copy its bytes.
            self.drop_partial()
        self.data = data
        self.position = 0

    def next_frame(self) -> i64:
        """Returns where the next frame starts, without its size field, or NEED_DATA.

        Until :meth:`consume` is called, it returns the same frame. Raises FrameSizeError.
        """
        data = self.data
        size: i64 = self._size
        if size < 0:
            if len(data) - self.position < SIZE_BYTES:
                self._keep_partial()
                return NEED_DATA
            size = i64(read_i32_be(data, self.position))
            if size < self.size_min or size > self.size_max:
                raise FrameSizeError(size, self.size_min, self.size_max, self.what, self.setting)
            self._size = size
            self.position += SIZE_BYTES
        if len(data) - self.position < size:
            self._keep_partial()
            return NEED_DATA
        self.end = self.position + size
        return self.position

    def consume(self) -> None:
        """Passes over the frame that :meth:`next_frame` returned. Releases the data behind its last frame."""
        self._size = -1
        if self.end < len(self.data):
            self.position = self.end
        else:
            self.data = b""
            self.position = 0

    def _keep_partial(self) -> None:
        """Keeps the start of an incomplete frame, and releases everything before it."""
        if self.position < len(self.data):
            # A copy, unless nothing was consumed: otherwise it would keep the consumed frames in memory.
            received = self.data[self.position :]
            if 0 < self._size <= self.preallocated_max:
                self._partial = BytesIO(bytes(self._size))
            elif self._size > JOINED_BYTES_MAX:
                self._partial = BytesIO()
            else:
                self._partial = _Pieces()
            self._partial.write(received)
            self._partial_bytes = len(received)
        self.data = b""
        self.position = 0

    def drop_partial(self) -> None:
        """Drops the start of an incomplete frame whose end never arrives."""
        self._partial = _Pieces()
        self._partial_bytes = 0

    def clear(self) -> None:
        """Drops all bytes."""
        self.drop_partial()
        self.data = b""
        self.position = 0
