"""The page: HTML around a script and a style sheet that are part of Ingot, and the data.

Names and source text come from models and files of others. In the page they stand inside a JSON document in which no
character can end the element that holds it, and the script shows them as text. The content security policy lets no
other script run, and nothing be loaded.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from importlib.resources import files
from os import PathLike

from ingot.errors import ViewError, format_error
from ingot.viewer.view_data import Json
from ingot.viewer.weights.tensor_pool import TensorPool, blocks_of
from ingot.viewer.weights.weight_statistics import summarize_weight
from ingot_runtime.files import write_file

SCRIPT, STYLE = "app.js", "app.css"
# Data beyond this size is compressed in a page.
PLAIN = 200_000
# Values of weights that a page without a server may hold.
MOST_WEIGHTS = 32_000_000
# What could end the element that holds a script or a style sheet, or begin a comment in it.
_ENDINGS = ("</script", "</style", "<!--")
# What markup begins and ends with, what ends a line in a script, what UTF-8 cannot write: all stand in strings only.
_SPECIAL = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_BASE_POLICY = (
    "default-src 'none'; img-src 'self' data: blob:; font-src data:; worker-src blob:; base-uri 'none'; "
    "form-action 'none'"
)


def served_policy() -> str:
    """The content security policy of the page as the server sends it."""
    return (
        f"{_BASE_POLICY}; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "frame-ancestors 'none'"
    )


def exported_policy(script: str) -> str:
    """That of a page that is one file: its own script and nothing else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{_BASE_POLICY}; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"


def read_asset(name: str) -> str:
    """The text of a part of the page. Raises ViewError where this installation has none."""
    found = files("ingot.viewer").joinpath("assets", name)
    if not found.is_file():
        raise ViewError(
            format_error(
                f"This installation of Ingot has no {name}, which is part of the page.",
                why="the page is built from the folder viewer/ of the repository",
                fix="run `make viewer` in a checkout, or install a released package",
            )
        )
    return found.read_text(encoding="utf-8")


def encode_json(data: Json) -> str:
    """JSON that may stand inside an HTML element: the characters that markup begins and ends with are escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _SPECIAL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def embed_data(data: Json) -> str:
    """The element that holds the data of a page."""
    text = encode_json(data)
    if len(text) <= PLAIN:
        return f'<script type="application/json" id="view-data">{text}</script>'
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="text/plain" id="view-data" data-encoding="gzip+base64">{packed}</script>'


def render_page(title: str, head: str, body: str) -> str:
    shown = html.escape(title).encode(errors="replace").decode()  # a name may hold what UTF-8 cannot write
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{head}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n<title>{shown}</title>\n'
        f'</head>\n<body>\n<div id="app"></div>\n{body}\n</body>\n</html>\n'
    )


def served_page(title: str) -> str:
    """The page as the server sends it; script, style sheet and data are files of their own."""
    style = f'<link rel="stylesheet" href="{STYLE}">\n'
    return render_page(f"{title} · Ingot", style, f'<script src="{SCRIPT}"></script>')


def export_page(data: Json, script: str | None = None, style: str | None = None) -> str:
    """The page as one file that needs no server and no network."""
    script = read_asset(SCRIPT) if script is None else script
    style = read_asset(STYLE) if style is None else style
    for name, text in ((SCRIPT, script), (STYLE, style)):
        for ending in _ENDINGS:
            assert ending not in text.lower(), f"{name} holds {ending}"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(exported_policy(script))}">\n'
    body = f"{embed_data(data)}\n<script>{script}</script>"
    return render_page(f"{data['title']} · Ingot", f"{policy}<style>{style}</style>\n", body)


def write_page(path: str | PathLike[str], data: Json, weights: TensorPool | None = None) -> None:
    """Writes the page, whole or not at all, with the values of weights if they are given. Raises OSError, and ViewError
    where they are too many."""
    write_file(path, export_page(hold_weights(data, weights)), "the page")


def hold_weights(data: Json, weights: TensorPool | None) -> Json:
    """The data of a page that has no server: with the values of its weights, or without the weights."""
    if weights is None:
        return data | {"weights": []} if data.get("weights") else data
    size = weights.size()
    if size > MOST_WEIGHTS:
        raise ViewError(
            format_error(
                f"The weights have {size / 1e6:,.1f} MB.",
                why=f"a page holds {MOST_WEIGHTS / 1e6:.0f} MB at most",
                fix="leave --weights out, or open the page with `ingot view` without --export",
            )
        )
    held = [
        item | {"data": base64.b64encode(b"".join(blocks_of(tensor))).decode(), "stats": summarize_weight(tensor)}
        for item, tensor in zip(weights.describe(), weights.items, strict=True)
    ]
    return data | {"weights": held}
