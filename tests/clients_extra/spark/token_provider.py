"""A token provider that Spark's executors import by name."""

from __future__ import annotations

import json
import os
import urllib.request


def token() -> tuple[str, float]:
    """Returns a token of the OAuth server that the environment names."""
    request = urllib.request.Request(
        os.environ["TEST_TOKEN_URL"],
        b"grant_type=client_credentials&scope=records",
        {"Authorization": os.environ["TEST_TOKEN_AUTHORIZATION"]},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = json.load(answer)["access_token"]
    return text, 4_000_000_000
