"""The one place of the runtime where environment variables are read.

INGOT_CUDA_DRIVER     the library of the CUDA driver; libcuda.so.1, wherever the system's loader finds it, where it is
                      not given. The library of a model that runs on a GPU reads it too
"""

import os


def driver_library() -> str:
    return os.environ.get("INGOT_CUDA_DRIVER") or "libcuda.so.1"
