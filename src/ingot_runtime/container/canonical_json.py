"""JSON with one spelling: the writer has one, the reader rejects what two readers could understand differently."""

import json
from typing import Any, NoReturn


def encode(value: object) -> bytes:
    """The canonical bytes of a JSON value: sorted keys, no spaces, UTF-8. Raises ValueError or TypeError."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def decode(data: bytes) -> Any:
    """The value of JSON bytes. Raises ValueError for bad UTF-8, bad JSON, repeated keys, NaN and endless nesting."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise RepeatedKey(repeated)
    return result


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


class RepeatedKey(ValueError):
    """An object has the same key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} is there twice")
        self.key = key
