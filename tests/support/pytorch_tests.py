"""PyTorch's own test files: loaded from a checkout of its repository, and their tests listed."""

from __future__ import annotations

import importlib.util
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def load(path: Path) -> Any:
    """The test file as a module. Its neighbours can be imported, too."""
    for folder in (path.parent, path.parent.parent):
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item
