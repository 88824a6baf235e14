"""A hook of mkdocs: the build fails if a page loads a script, style, font or image from another host. Links may."""

from __future__ import annotations

import re
from typing import Any

_LOADED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def find_external_resources(html: str) -> list[str]:
    """The addresses on other hosts that a browser requests when it shows the page."""
    return _LOADED.findall(html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if found := find_external_resources(output):
        raise ValueError(f"{page.file.src_uri} loads {', '.join(found)} from another host")
    return output
