"""Compiled libraries of these tests lie in a folder of their own, which goes when the tests end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.oracle import quick_compiler

# Folders of tests whose time is mostly the C compiler's.
_QUICK = ("functions", "quantized")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """-O1 in some folders, but for tests marked `optimized`; simd loops are vectorized there too."""
    if request.path.parent.name not in _QUICK or request.node.get_closest_marker("optimized"):
        yield
        return
    with quick_compiler():
        yield
