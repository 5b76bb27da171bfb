"""The warning about an elected leader that may lack committed records."""

from __future__ import annotations

from controller_images import partition

from tidemill.controller.election_report import unclean_election_text
from tidemill.model.types import TopicPartition


def test_an_unclean_election_warning_names_brokers_with_all_committed_records() -> None:
    before = partition([1, 2, 3], isr=[2, 3], leader=2)
    after = before.replaced(leader=1, leader_epoch=before.leader_epoch + 1, isr=[1])
    text = unclean_election_text(TopicPartition("t", 0), before, after, {}, {})
    assert "brokers [2, 3] have all committed records but are unavailable (last leader: broker 2)" in text
