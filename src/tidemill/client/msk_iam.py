"""Login to Amazon MSK by IAM: its brokers accept a signed AWS request as a token of OAUTHBEARER.

The signer is Amazon's ``aws-msk-iam-sasl-signer-python`` (the extra ``msk``). Java's clients have a separate
mechanism for it, AWS_MSK_IAM, with options; both use the same port of the brokers.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemill.model.errors import ConfigError

_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$", re.IGNORECASE)

PROFILE, ROLE, SESSION = "awsProfileName", "awsRoleArn", "awsRoleSessionName"
KNOWN = (PROFILE, ROLE, SESSION)
"""Options of ``IAMLoginModule`` that the signer supports."""


def token() -> tuple[str, int]:
    """Signs with the default credentials, for ``sasl.oauth.token.provider=tidemill.client.msk_iam:token``.

    The region is that of AWS_REGION or AWS_DEFAULT_REGION. Returns a token and its expiry in ms since 1970.
    """
    return provider((), {})()


def provider(hosts: Sequence[str], options: Mapping[str, str]) -> Callable[[], tuple[str, int]]:
    """Returns a token provider for the brokers ``hosts``, with ``options`` of ``IAMLoginModule``.

    Raises ConfigError for unsupported options.
    """
    unknown = sorted(set(options) - set(KNOWN))
    if unknown:
        raise ConfigError(
            f"sasl.jaas.config: IAMLoginModule has the option {unknown[0]}, which Amazon's signer for Python "
            f"does not support; allowed are {', '.join(KNOWN)}"
        )
    if PROFILE in options and ROLE in options:
        raise ConfigError(f"sasl.jaas.config: {PROFILE} and {ROLE} are not compatible; omit one")

    def made() -> tuple[str, int]:
        return _signed(region_of(hosts), options)

    made.__qualname__ = "AWS_MSK_IAM"
    return made


def region_of(hosts: Sequence[str]) -> str:
    """Returns the region of the brokers, from their names or the environment."""
    for host in hosts:
        match = _HOST.search(host)
        if match is not None:
            return match[1].lower()
    found = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not found:
        raise ConfigError(
            f"the AWS region of {', '.join(hosts) or 'the brokers'} is not known: set AWS_REGION, or use the "
            "names that MSK gives its brokers"
        )
    return found


def _signed(region: str, options: Mapping[str, str]) -> tuple[str, int]:
    try:
        signer: Any = importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError:
        raise ConfigError(
            "a login to MSK by IAM needs Amazon's signer: pip install 'tidemill[msk]', also where Spark's "
            "executors run"
        ) from None
    found: Any
    if PROFILE in options:
        found = signer.generate_auth_token_from_profile(region, options[PROFILE])
    elif ROLE in options:
        more = (options[SESSION],) if SESSION in options else ()
        found = signer.generate_auth_token_from_role_arn(region, options[ROLE], *more)
    else:
        try:
            found = signer.generate_auth_token(region)
        except AttributeError:  # raised by the signer's None if there are no credentials
            raise ConfigError(
                "there are no AWS credentials here: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or give the machine a role"
            ) from None
    return str(found[0]), int(found[1])
