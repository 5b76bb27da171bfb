"""Tokens: how long a token is used, and OAuth servers, files and callables that return none."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tidemill.client import msk_iam, token_endpoint
from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable, ClientError
from tidemill.client.token_endpoint import EndpointSource, check_url, without_user
from tidemill.client.tokens import (
    TOKEN_BYTES_MAX,
    FileSource,
    ProviderSource,
    RefreshTimes,
    Token,
    TokenCache,
    jwt_expiry,
    load_provider,
    validated_token,
)
from tidemill.model.errors import ConfigError

SECRET = "cl13nt-s3cret"


def jwt(**claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{body}.c2ln"


# -- the use of a token -----------------------------------------------------------------------------------


class Source:
    """Returns tokens that are valid for the given time, or raises."""

    name = "the source"

    def __init__(self, clock: Callable[[], float], life_s: float | None) -> None:
        self.clock = clock
        self.life_s = life_s
        self.problem: ClientError | None = None
        self.count = 0

    def fetch(self) -> Token:
        if self.problem is not None:
            raise self.problem
        self.count += 1
        return Token(f"t{self.count}", None if self.life_s is None else self.clock() + self.life_s)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def cached(life_s: float | None) -> tuple[TokenCache, Source, Clock]:
    clock = Clock()
    source = Source(clock, life_s)
    return TokenCache(source, RefreshTimes(), clock), source, clock


def test_a_token_is_used_for_most_of_its_lifetime() -> None:
    cache, _, clock = cached(3600)
    assert [cache.get().text for _ in range(3)] == ["t1"] * 3
    clock.now += 3600 * 0.79
    assert cache.get().text == "t1"
    clock.now += 3600 * 0.06
    assert cache.get().text == "t2"


def test_a_token_with_unknown_expiry_is_used_once() -> None:
    cache, _, _ = cached(None)
    assert [cache.get().text for _ in range(2)] == ["t1", "t2"]


@pytest.mark.parametrize(
    ("life_s", "renewed_after_s"),
    [(3600, 3600 * 0.8), (1000, 700), (400, 100), (70, 70 * 0.8), (360, 360 * 0.8), (0, 0), (-5, 0)],
)
def test_the_buffer_and_the_minimum_period_apply_if_both_fit(life_s: float, renewed_after_s: float) -> None:
    assert RefreshTimes().renew_at(50.0, 50.0 + life_s, 0.0) == pytest.approx(50.0 + renewed_after_s)


def test_the_last_token_is_used_while_it_is_valid_and_fetches_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache, source, clock = cached(100)
    cache.get()
    source.problem = BrokerUnreachable("the source is away")
    clock.now += 90
    assert cache.get().text == "t1"
    assert "the source is away. The last token is used; it is valid for 10 s" in caplog.text
    clock.now += 10
    with pytest.raises(BrokerUnreachable):
        cache.get()
    source.problem = None
    assert cache.get().text == "t2"


def test_a_token_that_a_broker_refused_is_not_used_again() -> None:
    cache, source, clock = cached(100)
    cache.get()
    assert cache.drop() == ""
    assert cache.get().text == "t2"
    source.life_s = 5
    cache.drop()
    cache.get()
    clock.now += 8
    assert cache.drop() == " (it expired 3 s ago by the clock of this machine)"


def test_many_connections_share_one_token() -> None:
    cache, source, _ = cached(100)
    threads = [threading.Thread(target=cache.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.count == 1


# -- valid tokens -----------------------------------------------------------------------------------------


def test_the_earlier_expiry_of_server_and_token_counts() -> None:
    assert validated_token(jwt(exp=1_700_000_000), 1_700_000_001, {}, "s").expires_s == 1_700_000_000
    assert validated_token(jwt(exp=1_700_000_000), 1_600_000_000, {}, "s").expires_s == 1_600_000_000
    assert validated_token("opaque", 1_700_000_000_000, {}, "s").expires_s == 1_700_000_000  # milliseconds
    assert validated_token(b"opaque", None, {}, "s") == Token("opaque", None)


@pytest.mark.parametrize("text", ["a", "a.b", "a.!!.c", "a.e30.c", "a.bnVsbA.c", jwt(exp="soon")])
def test_text_that_is_not_a_jwt_has_no_expiry(text: str) -> None:
    assert jwt_expiry(text) is None


@pytest.mark.parametrize("text", ["", " ", "two words", "a\x01b", "ä", "x" * (TOKEN_BYTES_MAX + 1), None, 7])
def test_unsendable_text_is_refused(text: Any) -> None:
    with pytest.raises(AuthenticationFailed, match="the source returned") as caught:
        validated_token(text, None, {}, "the source")
    assert "two" not in str(caught.value)


# -- files and callables ----------------------------------------------------------------------------------


def test_a_file_is_read_again_for_each_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = FileSource(str(path))
    with pytest.raises(BrokerUnreachable, match="cannot be read: no such file"):
        source.fetch()
    path.write_text("one\n")
    assert source.fetch().text == "one"
    path.write_text("two\n")
    assert source.fetch().text == "two"


class Object:
    def token(self) -> str:
        return "of-an-object"


instance = Object()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("plain", Token("plain", None)),
        (("a", 1_700_000_000), Token("a", 1_700_000_000)),
        (("a", 1_700_000_000_000), Token("a", 1_700_000_000)),
        (("a", 1.5, "principal", {"pool": "p"}), Token("a", 1.5, {"pool": "p"})),
        (Token("a", 2.0), Token("a", 2.0)),
    ],
)
def test_callables_return_the_values_of_other_clients(given: Any, expected: Token) -> None:
    assert ProviderSource(lambda: given).fetch() == expected


def test_a_callable_is_found_by_its_name() -> None:
    assert load_provider(f"{__name__}:instance")() == "of-an-object"
    assert load_provider("tidemill.client.msk_iam:token") is msk_iam.token
    for text, why in (
        ("nowhere_at_all:f", r"cannot be imported .*Spark's executors"),
        (f"{__name__}:nothing", "has no nothing"),
        (f"{__name__}:SECRET", "cannot be called"),
        ("noform", "is module:function"),
    ):
        with pytest.raises(ConfigError, match=why):
            load_provider(text)


def test_a_failing_callable_is_named_and_may_be_retried() -> None:
    def away() -> str:
        raise ConnectionResetError("reset by peer")

    def wrong() -> str:
        raise KeyError("account")

    with pytest.raises(BrokerUnreachable, match=r"away returned no token: ConnectionResetError: reset by"):
        ProviderSource(away).fetch()
    with pytest.raises(AuthenticationFailed, match=r"wrong returned no token: KeyError.*correct the"):
        ProviderSource(wrong).fetch()


# -- an OAuth server --------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Sends the response that the test sets."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        server.seen.append((self.path, body, self.headers["Authorization"]))
        server.answer(self)

    def reply(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def oauth() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen = []
    server.url = f"http://127.0.0.1:{server.server_port}/token"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def source_at(url: str, scope: str = "", url_encode: bool = False, timeout_s: float = 5) -> EndpointSource:
    return EndpointSource(
        url,
        "me",
        SECRET,
        scope,
        url_encode=url_encode,
        timeout_s=timeout_s,
        trust=ssl.create_default_context,
    )


def returns(oauth: Any, code: int, body: Any, **headers: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    oauth.answer = lambda handler: handler.reply(code, data, **headers)


def test_client_and_secret_are_sent_as_in_the_rfc(oauth: Any) -> None:
    returns(oauth, 200, {"access_token": "t0ken", "expires_in": 60})
    began = time.time()
    token = source_at(oauth.url, "read write").fetch()
    assert token.text == "t0ken"
    assert token.expires_s == pytest.approx(began + 60, abs=5)
    ((path, body, authorization),) = oauth.seen
    assert (path, body) == ("/token", "grant_type=client_credentials&scope=read+write")
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == f"me:{SECRET}"


@pytest.mark.parametrize(
    ("code", "body", "kind", "why"),
    [
        (401, {"error": "invalid_client"}, AuthenticationFailed, r"401 \(invalid_client\); check client id"),
        (400, {"error": "x", "error_description": "y\nz"}, AuthenticationFailed, r"400 \(x: y z\); check"),
        (400, {"error": SECRET * 2}, AuthenticationFailed, r"400 \(\(hidden\)\(hidden\)\)"),
        (404, b"<html>", AuthenticationFailed, "404; check client id"),
        (503, b"", BrokerUnreachable, "503; the request is retried"),
        (429, {"error": "slow_down"}, BrokerUnreachable, "429"),
        (200, b"<html>hello", AuthenticationFailed, "no.* JSON object; does the URL name the token endpoint"),
        (200, b"[1]", AuthenticationFailed, "JSON object"),
        (200, {"token": "x"}, AuthenticationFailed, "without access_token"),
        (200, {"access_token": "two words"}, AuthenticationFailed, "invalid token of 9 characters"),
        (200, b"x" * (token_endpoint.RESPONSE_BYTES_MAX + 1), BrokerUnreachable, "more than 1048576 bytes"),
        (200, b"[" * 500_000, AuthenticationFailed, "JSON object"),
    ],
)
def test_errors_of_responses_without_a_token_have_the_next_step(
    oauth: Any, code: int, body: Any, kind: type[ClientError], why: str
) -> None:
    returns(oauth, code, body)
    with pytest.raises(kind, match=why) as caught:
        source_at(oauth.url).fetch()
    assert f"the token endpoint {oauth.url}" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_redirects_are_not_followed(oauth: Any) -> None:
    returns(oauth, 302, b"", Location=f"{oauth.url}/elsewhere")
    with pytest.raises(AuthenticationFailed, match="302: redirects are not followed"):
        source_at(oauth.url).fetch()
    assert len(oauth.seen) == 1


def test_the_time_of_a_slow_response_is_limited(oauth: Any) -> None:
    go_on = threading.Event()

    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1000):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return
            if go_on.wait(0.05):
                return

    oauth.answer = drip
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match="the response is incomplete"):
        source_at(oauth.url, timeout_s=0.5).fetch()
    go_on.set()
    assert time.monotonic() - began < 10


def test_a_refused_connection_is_reported() -> None:
    with pytest.raises(BrokerUnreachable, match="cannot be reached: connection refused; is it running"):
        source_at("http://127.0.0.1:9/token").fetch()


def test_the_header_may_be_url_encoded(oauth: Any) -> None:
    returns(oauth, 200, {"access_token": "t"})
    EndpointSource(
        oauth.url,
        "a b",
        "c:d",
        "",
        url_encode=True,
        timeout_s=5,
        trust=ssl.create_default_context,
    ).fetch()
    assert base64.b64decode(oauth.seen[0][2].removeprefix("Basic ")) == b"a+b:c%3Ad"


def test_urls_are_shown_without_user_password_and_query() -> None:
    assert without_user("https://u:p@host:1/path?key=s") == "https://host:1/path"
    for url in ("host/path", "https://", "https://h:x/", "https://h/a b", "file:///etc/token"):
        with pytest.raises(ConfigError, match="is not a valid URL"):
            check_url(url)


@pytest.mark.parametrize("user", ["u:p4ssword@", "p4ssword@", ":p4ssword@"])
def test_a_password_in_a_url_is_refused_without_showing_it(user: str) -> None:
    with pytest.raises(ConfigError, match=r"before its host.* omit it") as caught:
        check_url(f"https://{user}host/path")
    assert "p4ssword" not in str(caught.value)
    assert "https://host/path" in str(caught.value)


# -- MSK --------------------------------------------------------------------------------------------------


def test_the_region_comes_from_broker_names_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-9")
    broker = "b-1.demo.abc123.c2.kafka.us-east-1.amazonaws.com"
    assert msk_iam.region_of([broker]) == "us-east-1"
    assert msk_iam.region_of(["boot-x.c1.kafka-serverless.eu-central-1.amazonaws.com"]) == "eu-central-1"
    assert msk_iam.region_of(["b-1.x.kafka.cn-north-1.amazonaws.com.cn"]) == "cn-north-1"
    assert msk_iam.region_of(["own-name"]) == "eu-west-9"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="region of own-name is not known: set AWS_REGION"):
        msk_iam.region_of(["own-name"])


def test_the_signer_of_amazon_makes_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-example")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    token = ProviderSource("tidemill.client.msk_iam:token").fetch()
    signed = base64.urlsafe_b64decode(token.text + "=" * (-len(token.text) % 4)).decode()
    assert ".us-east-1." in signed.partition("?")[0]
    assert "Action=kafka-cluster%3AConnect" in signed
    assert "X-Amz-Signature=" in signed
    assert "wJalrXUtnFEMI" not in signed
    assert token.expires_s == pytest.approx(time.time() + 900, abs=60)


def test_the_error_without_aws_credentials_names_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no AWS credentials here: set AWS_PROFILE"):
        ProviderSource(msk_iam.token).fetch()


def test_options_of_the_java_module_that_the_signer_lacks_are_refused() -> None:
    with pytest.raises(ConfigError, match="are not compatible"):
        msk_iam.provider([], {"awsProfileName": "p", "awsRoleArn": "r"})
    with pytest.raises(ConfigError, match="awsStsRegion, which Amazon's signer"):
        msk_iam.provider([], {"awsStsRegion": "x"})


def test_logging_of_the_client_holds_no_token(oauth: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    returns(oauth, 200, {"access_token": "t0ken", "expires_in": 60})
    cache = TokenCache(source_at(oauth.url), RefreshTimes())
    cache.get()
    assert "t0ken" not in caplog.text
    assert SECRET not in caplog.text
