"""Records a second from fetched bytes to an Arrow record batch, one core: ``python bench/decode.py``.

The compiled data path and the same source as plain Python, in turn, each in its own process. Figures are the
best of many short rounds, since machines are shared; ``copy`` is the same bytes through memcpy, which no
decoder can beat.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial


def best_seconds(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def measure(value_bytes: int, records: int, rounds: int) -> None:
    import pyarrow as pa

    from tidemill import _build_mode
    from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
    from tidemill.records.arrow import to_record_batch
    from tidemill.records.batch import parse_batch
    from tidemill.records.batch_validation import RecordLimits, validate
    from tidemill.records.builder import BatchBuilder
    from tidemill.records.columns import decode_columns

    pa.set_cpu_count(1)
    unpack = partial(decode_columns, unpacked_bytes_max=UNPACKED_BYTES_MAX)
    batch_records = max(1, 16_384 // value_bytes)
    limits = RecordLimits(UNPACKED_BYTES_MAX, timestamp_after_ms=(1 << 63) - 1)
    print("compiled" if _build_mode.compiled else f"plain ({_build_mode.reason})")
    for name, key, headers, codec in (
        ("value only", None, None, 0),
        ("key and value", b"12345678", None, 0),
        ("with a header", b"12345678", [("trace", b"0123456789abcdef")], 0),
        ("value only, lz4", None, None, 3),
        ("value only, zstd", None, None, 4),
    ):
        pieces = []
        for first in range(0, records, batch_records):
            builder = BatchBuilder(codec)
            for i in range(batch_records):
                value = os.urandom(value_bytes // 2) + b"x" * (value_bytes // 2)
                builder.append(1_700_000_000_000 + i, key, value, headers)
            pieces.append(builder.build(base_offset=first))
        data = b"".join(pieces)
        count = unpack(data).count
        batch = parse_batch(pieces[0], 0, len(pieces[0]))
        want = headers is not None
        decode = best_seconds(lambda: unpack(data, want_headers=want), rounds)  # noqa: B023
        columns = unpack(data, want_headers=want)
        whole = best_seconds(lambda: to_record_batch(columns), rounds)  # noqa: B023
        copy = best_seconds(lambda: bytearray(data), rounds)  # noqa: B023
        check = best_seconds(lambda: validate(batch, limits, 0), rounds)  # noqa: B023
        print(
            f"  {name:<18} {count / (decode + whole) / 1e6:7.2f} M records/s   "
            f"(ns a record: decode {decode / count * 1e9:.1f}, arrow {whole / count * 1e9:.1f}, "
            f"copy {copy / count * 1e9:.1f}; validate {check / batch_records * 1e9:.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--here", action="store_true", help="in this process, in the mode it has")
    options = parser.parse_args()
    if options.here:
        measure(options.value_bytes, options.records, options.rounds)
        return
    for plain, rounds, records in (("0", options.rounds, options.records), ("1", 3, 2_000)):
        command = [sys.executable, __file__, "--here", "--value-bytes", str(options.value_bytes)]
        command += ["--rounds", str(rounds), "--records", str(records)]
        subprocess.run(command, env={**os.environ, "TIDEMILL_PLAIN": plain}, check=True)


if __name__ == "__main__":
    main()
