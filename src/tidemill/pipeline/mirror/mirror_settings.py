"""The clusters and settings of a mirror."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.pipeline.mirror.record_source import OFFSETS_MAX
from tidemill.pipeline.mirror.target_names import TargetNames, prefixed_names
from tidemill.pipeline.mirror.topic_filter import ALL_NAMES, TopicFilter


@dataclass(frozen=True)
class MirrorSource:
    """A source cluster: its alias, which names its checkpoint and prefixes, and its client settings."""

    alias: str
    client: Mapping[str, str] = field(repr=False)  # may contain a password


@dataclass(frozen=True, kw_only=True)
class MirrorJob:
    """The clusters and settings of a mirror. ``checkpoint`` is a folder, with one for each source below."""

    sources: Sequence[MirrorSource]
    target: MirrorSource
    checkpoint: str
    topics: TopicFilter = ALL_NAMES
    groups: TopicFilter | None = ALL_NAMES
    prefixed: bool = False
    trigger: str = "1 second"
    replication_factor: int = -1
    topics_interval_s: float = 10.0
    groups_interval_s: float = 10.0
    tasks: int | None = None
    same_offsets: bool = True
    """Whether the target's topics are mirrors with the offsets of the source, or ordinary records."""
    offsets_max: int = OFFSETS_MAX
    """Offsets of a micro-batch of ordinary records."""
    fail_on_data_loss: bool = True
    """Whether ordinary records that the source has deleted before they were copied end the mirror."""

    @property
    def merges(self) -> bool:
        """Whether topics of several sources may have the same name in the target."""
        return len(self.sources) > 1 and not self.prefixed and not self.same_offsets

    def names_of(self, source: MirrorSource) -> TargetNames:
        """Returns the naming of a source's topics in the target."""
        return prefixed_names(source.alias, self.target.alias) if self.prefixed else TargetNames()
