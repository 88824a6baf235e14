"""Run in a process of its own, under a sanitizer's runtime: calls a library that was compiled with the sanitizer.

    python sanitized_run.py ingot_runtime's-parent FOLDER CALLERS ROUNDS

FOLDER has a compiled file and its inputs as .npy files. Nothing here imports torch: its own code is not what is tested.
"""

from __future__ import annotations

import copy
import sys
import threading
from pathlib import Path


def main(source: str, folder: str, callers: int, rounds: int) -> None:
    sys.path.insert(0, source)
    import numpy as np

    import ingot_runtime

    arrays = [np.load(path) for path in sorted(Path(folder).glob("input*.npy"))]
    # Saved as 16 bits: numpy has no bfloat16.
    inputs = [ingot_runtime.BFloat16Array(a) if a.dtype == np.uint16 else a for a in arrays]
    model = ingot_runtime.load(Path(folder) / "m.ingot", threads=3)
    failed: list[BaseException] = []

    def call() -> None:
        try:
            for _ in range(rounds):
                model.run([copy.copy(array) for array in inputs])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model.close()
    if failed:
        raise failed[0]
    print("ran", callers * rounds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
