"""Checks a mirror before Spark starts: its settings, its checkpoint, and its clusters."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.client.admin import Admin
from tidemill.client.errors import ClientError
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.preflight_checks import AVAILABLE_NOW, check_folder, local_path
from tidemill.pipeline.mirror.checkpoint_clusters import refuse_other_clusters
from tidemill.pipeline.mirror.cluster_outages import is_outage
from tidemill.pipeline.mirror.mirror_loop_detection import refuse_same_cluster
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.target_names import ClaimedNames
from tidemill.pipeline.mirror.target_support import refuse_other_listener, refuse_without_mirrors
from tidemill.pipeline.mirror.topic_sync import TopicSync

logger = logging.getLogger("tidemill.pipeline")

LOCK = ".lock"


def check_mirror(job: MirrorJob) -> None:
    """Checks a job without the clusters. Raises ConfigError."""
    for pattern in (job.topics, job.groups):
        if pattern is not None:
            pattern.check()
    aliases = [cluster.alias for cluster in (*job.sources, job.target)]
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise ConfigError(
                f"the alias {alias} is given twice: name each cluster, as --source {alias}2=HOST:PORT"
            )
    local_path(job.checkpoint, "checkpoint")
    check_folder("checkpoint", job.checkpoint)


@contextmanager
def checked_clusters(job: MirrorJob) -> Iterator[None]:
    """Locks the checkpoint for the job, and checks the clusters.

    A cluster that cannot be reached now ends no job that runs until it is stopped: it is checked once it can
    be reached. Raises ConfigError for clusters that cannot be mirrored, and ClientError.
    """
    with locked_checkpoint(job.checkpoint):
        _check_clusters(job)
        yield


def _check_clusters(job: MirrorJob) -> None:
    address = job.target.client["bootstrap.servers"]
    claimed = ClaimedNames()
    with Admin(None, job.target.client) as target:
        if job.same_offsets:
            refuse_without_mirrors(target, address)
            refuse_other_listener(target, address)
        for source in job.sources:
            with Admin(None, source.client) as admin:
                try:
                    refuse_wrong_clusters(job, source, admin, target)
                    if job.same_offsets and len(job.sources) > 1:
                        topics = TopicSync(admin, target, job.topics, job.names_of(source))
                        claimed.claim(source.alias, topics.mirrored().values())
                except (ClientError, OSError) as problem:
                    if job.trigger == AVAILABLE_NOW or not is_outage(problem):
                        raise
                    logger.warning("the mirror of %s begins without a cluster: %s", source.alias, problem)


def refuse_wrong_clusters(job: MirrorJob, source: MirrorSource, admin: Admin, target: Admin) -> None:
    """Raises ConfigError if the source is the target, or the checkpoint is that of other clusters.

    ``admin`` and ``target`` are clients of the source and the target. With the same offsets another target
    has positions of its own, its log ends.
    """
    ids = refuse_same_cluster(admin, target, source.alias)
    if job.same_offsets:
        ids = ids._replace(target=None)
    refuse_other_clusters(Path(job.checkpoint) / source.alias, source.alias, ids)


@contextmanager
def locked_checkpoint(checkpoint: str) -> Iterator[None]:
    """Locks the folder for one job. Raises ConfigError while another one runs with it."""
    Path(checkpoint).mkdir(parents=True, exist_ok=True)
    try:
        lock = SystemFiles().lock(str(Path(checkpoint) / LOCK))
    except BlockingIOError:
        raise ConfigError(
            f"another mirror runs with the checkpoint {checkpoint}: stop it, or set another one"
        ) from None
    try:
        yield
    finally:
        lock.close()
