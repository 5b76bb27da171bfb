"""The incremental topic index equals an index built from all topics."""

from __future__ import annotations

from random import Random

import pytest

from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.nodes import ConfigResource
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.coordination.topic_index import PARTITIONS_PER_SLICE, TopicIndex, compute_traits_in_slices
from tidemill.model.types import ZERO_ID

NAMES = [f"t{number}" for number in range(12)]
STEPS = 200


def some_topic(random: Random, name: str) -> TopicImage:
    """A topic with some partitions in reassignment. Its id may be missing, or that of another topic."""
    partitions = tuple(
        PartitionImage(
            number, 1, 0, [1, 2], [1, 2], 0, random.choice(([], [], [2])), random.choice(([], [1]))
        )
        for number in range(random.randint(0, 2))
    )
    own = name.encode().ljust(16, b"-")
    topic_id = random.choice(
        (own, own, own, own[:2] + b"again".ljust(14, b"-"), b"shared".ljust(16), ZERO_ID)
    )
    return TopicImage(name, topic_id, partitions, {"retention.ms": str(random.randint(0, 1))})


def next_image(random: Random, image: ClusterImage) -> ClusterImage:
    """The image after a random change of a few topics, of settings, or of other parts."""
    kind = random.randint(0, 4)
    if kind == 0:
        return image.with_brokers({})
    if kind == 1:
        return image.with_settings({ConfigResource("topics", name): {} for name in random.sample(NAMES, 2)})
    changed = [some_topic(random, name) for name in random.sample(NAMES, random.randint(0, 3))]
    return image.with_topics(changed, random.sample(NAMES, random.randint(0, 2)))


def rebuilt(image: ClusterImage) -> ClusterImage:
    """The same image without its predecessor."""
    return ClusterImage(topics=dict(image.topics))


def named(delta: Delta) -> dict[str, set[object]]:
    return {
        "created": set(delta.created),
        "changed": set(delta.changed),
        "reconfigured": set(delta.reconfigured),
        "deleted": set(delta.deleted),
    }


@pytest.mark.parametrize("seed", range(20))
def test_an_updated_index_equals_a_rebuilt_index(seed: int) -> None:
    random = Random(seed)
    image = ClusterImage()
    for _ in range(STEPS):
        image = next_image(random, image)
        whole = TopicIndex(dict(image.topics))
        assert image.topics_by_id == whole.by_id
        assert image.topic_index.reassigning == whole.reassigning


@pytest.mark.parametrize("seed", range(20))
def test_the_delta_of_images_equals_a_full_comparison(seed: int) -> None:
    random = Random(seed)
    images = [ClusterImage()]
    for _ in range(STEPS):
        # Sometimes a change is reverted, and another one made.
        images.append(next_image(random, images[-random.randint(1, min(3, len(images)))]))
        for before in images[-4:]:
            found = Delta.between(before, images[-1])
            assert named(found) == named(Delta.between(rebuilt(before), rebuilt(images[-1])))
            assert len({*found.created}) == len(found.created)


def test_the_delta_of_consecutive_images_contains_only_the_change() -> None:
    topics = {name: TopicImage(name, name.encode().ljust(16), (), {}) for name in NAMES}
    before = TopicIndex(topics)
    other = TopicImage("t3", b"another id      ", (), {})
    after = before.with_changes([other], ["t5"])
    assert list(after.may_differ_from(before)) == ["t3", "t5"]
    assert list(after.may_differ_from(after)) == []
    assert before.with_changes([]) is before
    assert list(before.may_differ_from(after)) == [*NAMES]


@pytest.mark.parametrize("at", [None, 0, 1500, 2999])
@pytest.mark.parametrize("which", [{"leader": -1}, {"adding": [3], "replicas": [1, 2, 3]}, {"removing": [2]}])
def test_indexing_a_large_topic_in_slices_equals_indexing_it_at_once(
    at: int | None, which: dict[str, object]
) -> None:
    partitions = [PartitionImage(number, 1, 0, [1, 2], [1, 2]) for number in range(3000)]
    if at is not None:
        partitions[at] = partitions[at].replaced(**which)
    noted, plain = (TopicImage("t", b"t" * 16, tuple(partitions), {}) for _ in range(2))
    assert len(list(compute_traits_in_slices(noted))) == len(partitions) // PARTITIONS_PER_SLICE
    indexes = [TopicIndex({}).with_changes([one]) for one in (noted, plain)]
    for kind in ("reassigning", "leaderless", "by_broker"):
        first, second = (getattr(index, kind) for index in indexes)
        assert first == second
    # Another state of the topic is indexed again.
    other = noted.with_partitions(partitions[:1])
    assert other.traits is None
    after = indexes[0].with_changes([other])
    expected = TopicIndex({"t": other})
    assert all(after.with_replicas_on([one]) == expected.with_replicas_on([one]) for one in (1, 2, 3))
