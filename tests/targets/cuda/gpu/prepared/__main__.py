"""Evidence from a machine with a GPU that only runs files: capture, compilation and judgement are done elsewhere.

    python -m tests.targets.cuda.gpu.prepared prepare --count 600 --most 1 --minutes 60      without a GPU: bundles
    python -m tests.targets.cuda.gpu.prepared execute build/prepared/cuda/bundle-01          on the GPU: to $OUT
    python -m tests.targets.cuda.gpu.prepared judge RESULTS …                                without a GPU: verdicts

`judge` also writes verdicts to docs/reports/data/cuda_programs.txt. `prepare --skip-known` leaves out a program whose
text was right on a GPU before. `--help` behind a step lists its options.
"""

from __future__ import annotations

import argparse
import importlib
import sys

STEPS = ("prepare", "execute", "judge")


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        print(__doc__)
        return 2
    step = importlib.import_module(f"tests.targets.cuda.gpu.prepared.{sys.argv[1]}")  # execute has no torch
    parser = argparse.ArgumentParser(
        prog=f"prepared {sys.argv[1]}", description=step.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    step.add_arguments(parser)
    status: int = step.main(parser.parse_args(sys.argv[2:]))
    return status


if __name__ == "__main__":
    sys.exit(main())
