"""A mirror of ordinary records with a Spark of its own that kills itself, Java and all, before one step.

``python tests/pipeline/killed_mirror.py SOURCE TARGET TOPIC CHECKPOINT STEP BATCH``, with the number of the
micro-batch. It has to lead a process group.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tidemill.pipeline.jobs.session import local_session
from tidemill.pipeline.mirror.mirror_job import mirror
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.record_query import RecordQuery
from tidemill.pipeline.mirror.topic_filter import TopicFilter

METHODS = {"write": "_write", "points": "_next_points", "commit": "write_batch"}
"""The method that a step is in: before its call, or after it for ``commit``."""


def main(source: str, target: str, topic: str, checkpoint: str, step: str, batch: str) -> None:
    """Mirrors until the kill."""
    if step in METHODS:
        method = getattr(RecordQuery, METHODS[step])

        def killed(query: RecordQuery, *arguments: Any) -> Any:
            if step == "commit":
                method(query, *arguments)
            number = arguments[0].number if step == "points" else arguments[1]
            if number == int(batch):
                os.killpg(os.getpgrp(), signal.SIGKILL)
            return None if step == "commit" else method(query, *arguments)

        setattr(RecordQuery, METHODS[step], killed)
    spark = local_session("killed mirror", master="local[2]")
    spark.sparkContext.setLogLevel("OFF")
    job = MirrorJob(
        sources=[MirrorSource("east", {"bootstrap.servers": source})],
        target=MirrorSource("west", {"bootstrap.servers": target}),
        checkpoint=checkpoint,
        topics=TopicFilter(topic),
        groups=TopicFilter(f"{topic}-.*"),
        trigger="available-now",
        same_offsets=False,
    )
    mirror(spark, job)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
