"""python -m ingot_runtime describe|run|self-test|extract m.ingot"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import files
from .cli_run import run_file, write_results
from .container import open_container
from .container.manifest import read_spec
from .container.signing import Trust, check_trust
from .description import best_library, describe, weights_of
from .errors import IngotError
from .model import load

HEADER = Path(__file__).parent / "include" / "ingot.h"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0, or 1 with a message on standard error."""
    options = _parser().parse_args(arguments)
    try:
        options.act(options)
    except (IngotError, OSError, ValueError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m ingot_runtime",
        description="Runs a compiled .ingot file: native code of whoever made it. Needs no torch.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, act: Any, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(act=act)
        made.add_argument("file", help="a compiled .ingot file")
        made.add_argument(
            "--trust-key",
            action="append",
            metavar="KEY.pem",
            help="refuse the file unless the holder of this public key signed it; repeatable",
        )
        return made

    run = command("run", _run, "Call the model with arrays from .npy files; results to an .npz file.")
    run.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="or NAME=NUMBER for a scalar"
    )
    run.add_argument("--output", required=True, metavar="FILE.npz", help="bfloat16 results are stored as float32")
    run.add_argument("--seed", type=int, help="of random draws")
    run.add_argument("--threads", type=int)
    run.add_argument("--device", type=int, default=0, help="the number of the GPU, of a model for one")
    test = command("self-test", _self_test, "Run the sample stored in the file, and compare.")
    test.add_argument("--threads", type=int)
    test.add_argument("--device", type=int, default=0, help="the number of the GPU, of a model for one")
    command("describe", _describe, "What the model takes and gives. Runs nothing of the file.")
    extract = command(
        "extract",
        _extract,
        "Write model.so, weights.bin, ingot.h and code for GPUs, for use from C. Runs nothing of it.",
    )
    extract.add_argument("folder", help="made if it is not there")
    extract.add_argument("--isa", help="which library, if not the best for this machine")
    return parser


def _trust(options: argparse.Namespace) -> Trust:
    return options.trust_key or True


def _run(options: argparse.Namespace) -> None:
    chosen = {"seed": options.seed, "threads": options.threads, "device": options.device}
    results = run_file(options.file, options.input, trust=_trust(options), **chosen)
    write_results(options.output, results)
    for name, array in results.items():
        print(f"{name}: {array.dtype}{list(array.shape)}")


def _self_test(options: argparse.Namespace) -> None:
    with load(options.file, options.threads, trust=_trust(options), device=options.device) as model:
        print(f"{options.file}: good on this machine, {model.isa}; largest difference {model.self_test():.3g}")


def _describe(options: argparse.Namespace) -> None:
    print(describe(options.file, trust=_trust(options)))


def _extract(options: argparse.Namespace) -> None:
    folder = Path(options.folder)
    with open_container(options.file, writable=False) as container:
        check_trust(container, _trust(options))
        spec = read_spec(container.manifest, container.names, container.path)
        isa = best_library(spec, container.path, options.isa)
        blob = weights_of(container, spec)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.unwritable(error, folder, "the folder") from None
        library = f"model{Path(spec.libraries[isa]).suffix}"
        files.write_file(folder / library, container.copy(spec.libraries[isa]), "the library")
        files.write_file(folder / "weights.bin", blob.view, "the file of weights")
        files.write_file(folder / "ingot.h", HEADER.read_bytes(), "the header")
        images = []
        for member in spec.images.values():
            images.append(Path(member).name)
            files.write_file(folder / images[-1], container.copy(member), "the code for a GPU")
    print(f"{folder}: {', '.join([f'{library} ({isa})', *images, f'weights.bin ({blob.size:,} bytes)', 'ingot.h'])}")


if __name__ == "__main__":
    sys.exit(main())
