"""Every stage of a model, from the user's source line to C, as one page in the browser.

    view(target)     what `ingot view`, `program.view()` and `compiled.view()` show

    collect          stages of a program as they happen: passes, loop IR, scheduling, C       ┐
    onnx_file, snapshot_folder, compiled_file       what such files have of it                ├▶ ViewData, as JSON
    value_statistics, profile_data, memory_data, quantization_data                            ┘
    page             one HTML file that works offline; nothing in the data can become markup or code
    server           the same page on the loopback address, behind a token

The page itself is TypeScript: the folder `viewer/` of the repository, built into `assets/`.
"""

from __future__ import annotations
