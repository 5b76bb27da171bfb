"""The topics and partitions that the options of a source select. No cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from tidemill.client.range_reader import TopicView
from tidemill.model.errors import ConfigError
from tidemill.pipeline.cluster import Cluster
from tidemill.pipeline.offset_ranges import select_topics
from tidemill.pipeline.options import parse_source_options

THERE = {"a": TopicView(b"a" * 16, 3), "b": TopicView(b"b" * 16, 1)}


class KnownTopics:
    """Two topics, of three partitions and of one."""

    def describe(self, names: Sequence[str]) -> dict[str, TopicView]:
        return {name: THERE[name] for name in names if name in THERE}

    def topic_names(self) -> list[str]:
        return list(THERE)


@pytest.mark.parametrize(
    ("assigned", "told"),
    [
        ('{"a": [0, 2], "b": [0]}', ""),
        ('{"a": [3]}', "option assign names a-3, but topic a has partitions 0 to 2"),
        ('{"a": [0], "b": [0, 1]}', "option assign names b-1, but topic b has partitions 0 to 0"),
        ('{"a": [0], "bb": [0]}', "there is no topic bb at h:1; did you mean b?"),
    ],
)
def test_a_missing_partition_is_refused_where_all_are_required(assigned: str, told: str) -> None:
    options = parse_source_options({"kafka.bootstrap.servers": "h:1", "assign": assigned}, streaming=False)
    cluster = cast(Cluster, KnownTopics())
    if told:
        with pytest.raises(ConfigError) as caught:
            select_topics(cluster, options, strict=True)
        assert str(caught.value) == told
    else:
        assert select_topics(cluster, options, strict=True) == THERE
    assert select_topics(cluster, options, strict=False).keys() <= THERE.keys()
