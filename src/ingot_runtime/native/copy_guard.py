"""Objects that hold native code cannot be pickled or copied; the error says what to do instead."""

from typing import Any, Self

from ..errors import CopyError, format_error


class Uncopied:
    """Raises CopyError where it is pickled or copied with all that it holds. A shallow copy shares everything."""

    _instead = "save it with save(path), and load that file where it is needed"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self._refusal("pickled")

    def __deepcopy__(self, memo: Any) -> Any:
        raise self._refusal("copied")

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def _refusal(self, how: str) -> CopyError:
        return CopyError(
            format_error(
                f"A {type(self).__name__} cannot be {how}.",
                why="it holds loaded native code, its threads and its memory",
                fix=self._instead,
            )
        )
