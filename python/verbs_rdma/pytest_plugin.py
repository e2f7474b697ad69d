"""The fixture `verbs_network`: a network of devices for one test. pytest finds it where the package is installed."""

from __future__ import annotations

from typing import Iterator

import pytest

from . import Network


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "verbs_network(count=2, loss=None, seed=None): what the fixture verbs_network of this test is like"
    )


@pytest.fixture
def verbs_network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """Two devices, or as the mark `verbs_network` says: see `verbs_rdma.Network`."""
    mark = request.node.get_closest_marker("verbs_network")
    with Network(*(mark.args if mark else ()), **(mark.kwargs if mark else {})) as network:
        yield network
