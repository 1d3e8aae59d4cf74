"""What all tests of reports share: a page's latencies are measured as briefly as they can be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tamis.reports.comparison


@pytest.fixture(autouse=True, scope="session")
def latencies_take_no_more_time_than_they_must() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # how long is not what is tested
        yield
