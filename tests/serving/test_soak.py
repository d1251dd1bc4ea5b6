"""A short form of `make soak`."""

from __future__ import annotations

import pytest

from .soak import soak


@pytest.mark.slow
def test_nothing_is_lost_or_leaked(server, request):
    done = soak(server, seconds=12, clients=8, seed=request.config.getoption("--seed"))
    assert all(done[name] for name in ("whole", "streamed", "scored", "pattern", "leaves"))
