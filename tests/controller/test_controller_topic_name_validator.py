"""Name collisions are found as by a comparison with all names."""

from __future__ import annotations

from random import Random

import pytest

from tidemill.controller.topic_name_validator import SEPARATORS_MAX, UsedTopicNames, collision_key
from tidemill.model.errors import ErrorCode, KafkaError


def some_name(random: Random) -> str:
    joints = random.choice((0, 1, 2, 3, SEPARATORS_MAX + 1))
    return "a" + "".join(random.choice("._") + random.choice(("a", "")) for _ in range(joints))


@pytest.mark.parametrize("seed", range(20))
def test_a_name_collides_with_those_that_differ_in_dots_and_underlines_only(seed: int) -> None:
    random = Random(seed)
    there = {some_name(random): None for _ in range(random.randint(0, 20))}
    taken = UsedTopicNames(there)
    added: list[str] = []
    for _ in range(100):
        name = some_name(random)
        if name in there or name in added:
            continue
        others = [
            one for one in (*there, *added) if one != name and collision_key(one) == collision_key(name)
        ]
        if others:
            with pytest.raises(KafkaError) as refused:
                taken.check(name)
            assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert any(f"the topic {one!r}" in str(refused.value) for one in others)
        else:
            taken.check(name)
            taken.add(name)
            added.append(name)
