"""The protocol page matches the code: its frame is decoded, its tables are compared."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.broker.api_registry import APIS
from tidemill.wire.apis import API
from tidemill.wire.header import decode_request, encode_request, parse_request_header
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")


def test_the_frame_of_the_page_is_decoded() -> None:
    block = PAGE.split("```\n")[1].split("```")[0]
    frame = bytes.fromhex("".join(re.match(r" *((?:[0-9a-f]+ )+)", line)[1] for line in block.splitlines()))  # type: ignore[index]
    message = MetadataRequest(topics=[MetadataRequestTopic(name="tide")])
    assert encode_request(3, 9, 42, "kcat", message) == frame
    assert decode_request(parse_request_header(frame, 4), frame) == message


def test_the_table_matches_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \| (\w+) \|", PAGE, re.MULTILINE)
    described = {
        int(key): (name, int(first), int(last), -1 if flexible == "none" else int(flexible))
        for key, name, first, last, flexible in rows
    }
    assert described == {
        int(key): (spec.name, spec.version_min, spec.version_max, spec.flexible_from)
        for key, spec in API.items()
    }


def test_the_page_counts_the_keys() -> None:
    count, first, last = re.findall(r"all (\d+) keys of Apache Kafka [\d.]+, (\d+) to\s(\d+)", PAGE)[0]
    assert (int(count), int(first), int(last)) == (len(API), min(API), max(API))


def test_the_versions_of_the_broker_match_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| \w+ \| [\d-]+ \| \w+ \| ([\d-]+) \| ([\d-]+) \|$", PAGE, re.MULTILINE)
    told = {int(key): (announced, handled) for key, announced, handled in rows if announced != "-"}
    assert len(rows) == len(API)
    versions = {api.key: f"{api.first}-{api.last}" for api in APIS.values()}
    assert told == {key: (one, one) for key, one in versions.items()}
