from __future__ import annotations

import pickle

import pytest

from tidemill.client.config_keys import KEYS
from tidemill.model.secrets import Settings, is_secret, shown, without

SECRETS = {
    "sasl.jaas.config",
    "sasl.password",
    "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.key.password",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
}


def test_the_secret_client_keys_are_marked() -> None:
    assert {name for name in KEYS if is_secret(name)} == SECRETS
    assert {name for name, key in KEYS.items() if key.sensitive} == SECRETS


@pytest.mark.parametrize(
    "name", ["sasl_password", "token", "access_token", "PASSWORD", "basic.auth.secret", "key"]
)
def test_secret_names_of_other_programs_are_recognized(name: str) -> None:
    assert is_secret(name)
    assert shown(name, "value") == "(hidden)"


@pytest.mark.parametrize("name", ["ssl.key.location", "sasl.oauth.token.provider", "sasl.username", "monkey"])
def test_similar_names_are_not_secret(name: str) -> None:
    assert not is_secret(name)
    assert shown(name, "value") == "'value'"


def test_settings_do_not_show_their_secrets_and_pickle_them() -> None:
    settings = Settings({"sasl.password": "p4ssword", "client.id": "me"})
    expected = "{'sasl.password': '(hidden)', 'client.id': 'me'}"
    assert (repr(settings), str(settings), f"{settings}") == (expected, expected, expected)
    assert pickle.loads(pickle.dumps(settings))["sasl.password"] == "p4ssword"
    assert {**settings}["sasl.password"] == "p4ssword"


def test_secrets_are_removed_from_texts_of_other_programs() -> None:
    assert without(["p4ssword", None, ""], "no p4ssword, please") == "no (hidden), please"
    assert without(["abcd", "abcdef"], "abcdef") == "(hidden)"
    assert without(["a"], "banana") == "banana"
