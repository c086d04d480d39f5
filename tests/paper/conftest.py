"""Claims that do not depend on who orders are tested with both disciplines."""

import pytest

from ordering.disciplines import DISCIPLINES


@pytest.fixture(params=sorted(DISCIPLINES))
def discipline(request: pytest.FixtureRequest) -> str:
    return str(request.param)
