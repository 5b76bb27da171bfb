"""The fence of the controller's writes."""

from __future__ import annotations

import pytest

from tidemill.controller.controller_election import fence
from tidemill.coordination.coordination_store import ANY_VERSION, Check
from tidemill.coordination.nodes import CONTROLLER_EPOCH


def test_a_fence_refuses_a_version_that_matches_every_controller() -> None:
    assert fence(0) == Check(CONTROLLER_EPOCH, 0)
    with pytest.raises(ValueError, match="version -1 of the controller epoch"):
        fence(ANY_VERSION)
