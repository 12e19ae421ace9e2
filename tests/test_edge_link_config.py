"""Addresses and numbers of a link."""

from pathlib import Path

import pytest

from edge.link_config import LinkConfig
from shared.errors import BadInput
from tests.fakes import IDENTITY


@pytest.mark.parametrize(
    ("url", "session", "where", "loopback"),
    [
        ("ws://127.0.0.1:8765", "ws://127.0.0.1:8765/v1/session", "127.0.0.1:8765", True),
        ("wss://cloud.example", "wss://cloud.example/v1/session", "cloud.example:443", False),
        ("ws://localhost/", "ws://localhost/v1/session", "localhost:80", True),
        ("ws://[::1]:9", "ws://[::1]:9/v1/session", "[::1]:9", True),
        ("wss://cloud.example/llm/", "wss://cloud.example/llm/v1/session", "cloud.example:443", False),
        ("wss://cloud.example/v1/session", "wss://cloud.example/v1/session", "cloud.example:443", False),
    ],
)
def test_addresses(url: str, session: str, where: str, loopback: bool) -> None:
    made = LinkConfig(url, IDENTITY)
    assert (made.session_url, made.where, made.loopback) == (session, where, loopback)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://cloud.example", "use ws://HOST:PORT"),
        ("cloud.example:80", "use ws://HOST:PORT"),
        ("ws://", "use ws://HOST:PORT"),
        ("ws://host:99999", "ort"),
        ("ws://user:secret@host", "host, a port and a path only"),
        ("ws://host/?token=x", "host, a port and a path only"),
    ],
)
def test_bad_addresses_are_refused(url: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        LinkConfig(url, IDENTITY)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", " ", "a\nb", "schlüssel"])
def test_a_token_that_fits_in_no_header_is_refused(token: str) -> None:
    with pytest.raises(BadInput, match="printable ASCII"):
        LinkConfig("ws://host", IDENTITY, token=token)


def test_the_token_is_not_shown() -> None:
    assert "hush" not in repr(LinkConfig("ws://host", IDENTITY, token="hush"))


def test_times_are_above_zero() -> None:
    with pytest.raises(BadInput, match="beat_timeout_s is 0"):
        LinkConfig("ws://host", IDENTITY, beat_timeout_s=0)


def test_certificates_go_with_tls_and_must_be_readable(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="wss:// only"):
        LinkConfig("ws://host", IDENTITY, ca=tmp_path)
    with pytest.raises(BadInput, match="no certificates that can be read"):
        LinkConfig("wss://host", IDENTITY, ca=tmp_path / "missing.pem").tls()
    (tmp_path / "no.pem").write_text("no certificate")
    with pytest.raises(BadInput, match="no certificates that can be read"):
        LinkConfig("wss://host", IDENTITY, ca=tmp_path / "no.pem").tls()
    assert LinkConfig("ws://host", IDENTITY).tls() is None
