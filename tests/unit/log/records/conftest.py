"""Every test of this folder runs with both implementations; without the compiled one, with `pure` alone."""

from types import ModuleType

import pytest
from unit.log.records.record_world import implementations

from barnabas.log.records.codec import Codec


@pytest.fixture(params=implementations(), ids=lambda module: module.__name__.rpartition(".")[2])
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


@pytest.fixture
def codec(implementation: ModuleType) -> Codec:
    return Codec(implementation)
