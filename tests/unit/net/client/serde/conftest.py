from collections.abc import Iterator

import pytest

from .registry_stub import RegistryStub, running_registry


@pytest.fixture
def stub() -> Iterator[RegistryStub]:
    with running_registry() as running:
        yield running
