"""An address that strangers can reach needs a token."""

from pathlib import Path

import pytest

from cloud.config import ServeConfig
from shared.errors import BadInput
from shared.params import Limits


def config(**changes: object) -> ServeConfig:
    return ServeConfig(model="m", bundle=Path("."), home=Path("."), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_an_open_address_needs_a_token_or_a_word(host: str) -> None:
    """Hazard 22: no unauthenticated compute port on the network."""
    with pytest.raises(BadInput, match="EDGEWISE_TOKEN"):
        config(host=host)
    assert not config(host=host, token="long-enough").loopback
    assert not config(host=host, insecure=True).loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert config(host=host).loopback


def test_half_a_tls_pair_a_short_token_and_an_impossible_port_are_refused() -> None:
    with pytest.raises(BadInput, match="go together"):
        config(tls_cert=Path("cert.pem"))
    with pytest.raises(BadInput, match="8 characters"):
        config(token="short")
    with pytest.raises(BadInput, match="65535"):
        config(port=65536)


def test_the_context_is_the_models_own_unless_less_is_asked_for() -> None:
    assert config().within(256).limits.max_context == 256
    assert config().within(10**6).limits.max_context == Limits().max_context
    assert config(max_context=100).within(256).limits.max_context == 100
    with pytest.raises(BadInput, match="1 to 256"):
        config(max_context=257).within(256)
