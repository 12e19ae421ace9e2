"""What all tests share."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.real_model import RealModel


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutines in tests run on asyncio, as the programs do."""
    return "asyncio"


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> "RealModel":
    """The pinned real model; imported here, since the fast tests need no torch."""
    from tests.real_model import load_real_model

    return load_real_model(tmp_path_factory.mktemp("real"))
