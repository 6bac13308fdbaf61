"""The command line: `pullback info`, `pullback train EXAMPLE`, `pullback profile script.py`, `pullback hash FILE`."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import outputs, variables
from .errors import PullbackError
from .examples.catalogue import EXAMPLES, Example
from .hashing import hash
from .io import load

if TYPE_CHECKING:
    from .examples.files import Files
    from .examples.run import Result


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. A PullbackError is printed as one line, without a traceback.

    If the reader of the output (such as head) has closed the pipe, the command ends without a word, as other programs do.
    """
    try:
        try:
            options = _parser().parse_args(arguments)
            return int(options.run(options))
        finally:
            outputs.flush()
    except PullbackError as error:
        print(f"pullback: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        outputs.discard()
        return outputs.CLOSED_PIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:  # not an error of writing to stdout
            raise
        outputs.discard()
        print(f"pullback: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return 1


class _OneLine(argparse.ArgumentParser):
    """A parser whose errors are one line each, without the usage, and name the command that was given wrong arguments."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] (overloads)
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options, rest

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. `{self.prog} --help` lists what it takes.\n")


def _parser() -> argparse.ArgumentParser:
    import pullback

    parser = _OneLine(
        prog="pullback",
        description="Trains small networks, and shows what their forward and backward passes cost.",
        epilog="examples:\n"
        "  pullback info                    what runs on this machine\n"
        "  pullback train digits            train a network in a second\n"
        f"  pullback train --help            the other networks: {', '.join([name for name in EXAMPLES if name != 'digits'])}\n"
        "  pullback profile train.py        what your own script costs\n"
        "  pullback hash model.safetensors  compare the weights of two runs\n\n"
        "`pullback COMMAND --help` lists the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pullback {pullback.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_info, _add_train, _add_profile, _add_hash):
        add(commands)
    return parser


def _command(commands: Any, name: str, help: str, description: str, examples: Sequence[str], **options: Any) -> Any:
    return commands.add_parser(
        name, help=help, description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join([f"example{'s' if len(examples) > 1 else ''}:", *[f"  {example}" for example in examples]]), **options,
    )


# ---- info


def _add_info(commands: Any) -> None:
    info = _command(
        commands,
        "info",
        "version, devices, kernels, and why something falls back",
        "Prints the version, the devices, and which kernels run on this machine.",
        ["pullback info", "pullback info --ops | grep matmul"],
    )
    info.add_argument(
        "--ops", action="store_true", help="every op, its kernel on each backend, and if its bits are the same everywhere"
    )
    info.set_defaults(run=_info)


def _info(options: argparse.Namespace) -> int:
    from . import info

    info.show(ops=options.ops)
    return 0


# ---- train


def _add_train(commands: Any) -> None:
    train = _command(
        commands,
        "train",
        "train a network and show what it cost",
        "Trains the network of an example, prints how good it is and what the training cost, and saves\nthe weights, the page of "
        "the profile, the loss curve and, if the example draws one, a picture.",
        ["pullback train digits", "pullback train cnn --epochs 5 --seed 1 --out runs/seed1", "pullback train gru --help"],
    )
    names = train.add_subparsers(required=True, metavar="EXAMPLE")
    for name, example in EXAMPLES.items():
        _add_example(names, name, example)


def _add_example(names: Any, name: str, example: Example) -> None:
    parser = _command(names, name, example.summary, f"Shows that {example.summary}.", [f"pullback train {name}"])
    for option in example.options:
        parser.add_argument(
            f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default, choices=option.choices or None,
            help=f"{option.help} (default {option.default})",
        )
    parser.add_argument("--seed", type=int, default=0, help="of weights and random numbers (default 0)")
    parser.add_argument("--device", default=None, help="cpu (default), cuda, cuda:1 ...")
    parser.add_argument("--out", default=f"runs/{name}", help=f"folder of the files (default runs/{name})")
    parser.add_argument(
        "--reproducible",
        choices=variables.MODES,
        help="the same bits on this machine or everywhere (default: everywhere, if it can)",
    )
    parser.set_defaults(run=_train, example=name)


def _train(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from .examples import files
    from .examples.run import Run
    from .profiling import table

    name = options.example
    if reason := outputs.why_not_folder(options.out, files.NAMES):  # This must be found before an hour of training, not after it.
        raise PullbackError(f'train: results cannot be written to "{options.out}": {reason}. Give --out another folder.')
    chosen = {option.name: getattr(options, option.name) for option in EXAMPLES[name].options}
    unit = "epoch" if "epochs" in chosen else "step"
    bar = lambda rounds: tqdm(rounds, desc=name, unit=unit, dynamic_ncols=True)
    run = Run(seed=options.seed, device=options.device, reproducible=options.reproducible, progress=bar)
    result = importlib.import_module(f".examples.{name}", __package__).train(run, **chosen)
    try:
        paths = files.write(result, options.out)
    except OSError as error:
        raise PullbackError(f'train: results cannot be written to "{options.out}": {error}. Give --out another folder.') from error
    print(table.plain_table(table.COLUMNS, table.phase_rows(result.profile), title=f"{result.steps} steps"))
    for label, text in _lines(result, paths):
        print(f"{label:15}{text}")
    return 0


def _lines(result: Result, paths: Files) -> Iterator[tuple[str, object]]:
    """Yields the labels and the texts of the lines that follow the table."""
    missing = f"not drawn, {paths.why_not}"
    for name, measure in result.measures.items():
        yield name, measure.text
    if result.reference:
        yield "reference", result.reference
    yield "time", f"{result.seconds:.2f} s, {result.seconds / result.steps * 1e3:.3f} ms a step"
    yield "weights", paths.weights
    yield "profile", paths.profile
    yield "loss curve", paths.loss or missing
    if result.draw:
        yield "picture", paths.picture or missing
    yield "reproducible", f"{result.reproducible}{result.why_machine and f', because {result.why_machine}'}"
    yield "hash", hash(result.model)


# ---- hash


def _add_hash(commands: Any) -> None:
    hashes = _command(
        commands,
        "hash",
        "print the SHA-256 of the tensors in files",
        "Prints a line for each file: the SHA-256 of the names, shapes, dtypes and values of its\ntensors, and the path. The order "
        "of the tensors makes no difference. pb.hash(pb.load(FILE))\nreturns the same.",
        ["pullback hash runs/digits/weights.safetensors"],
    )
    hashes.add_argument("files", nargs="+", metavar="FILE", help="a safetensors file, by pb.save or another program")
    hashes.set_defaults(run=_hash)


def _hash(options: argparse.Namespace) -> int:
    status = 0
    for path in options.files:
        try:
            found = hash(load(path, device="cpu"))
        except (PullbackError, OSError) as error:
            words = f'{error.strerror}: "{path}"' if isinstance(error, OSError) else error
            print(f"pullback: {words}", file=sys.stderr)
            status = 1
        else:
            print(f"{found}  {path}")
    return status


# ---- profile


def _add_profile(commands: Any) -> None:
    profile = _command(
        commands,
        "profile",
        "run a script and show what its forward and backward passes cost",
        "Runs a script unchanged and prints, to stderr, what its main thread cost, forward and\nbackward. The exit status is the "
        "script's. Or compares two profiles that --json wrote.",
        [
            "pullback profile train.py --epochs 3",
            "pullback profile --by line --html cost.html train.py",
            "pullback profile --json before.json train.py",
            "pullback profile --compare before.json after.json",
        ],
        allow_abbrev=False,
        usage="pullback profile [options] (script.py | -m module) [arguments of the script]\n"
        "       pullback profile --compare before.json after.json",
    )
    profile.add_argument("-m", action="store_true", dest="is_module", help="the name of a module follows, as after python -m")
    profile.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="AXIS",
        help="show a table by op, module, line, kernel, order, dtype or phase instead of those by op and module (repeatable)",
    )
    profile.add_argument("--html", metavar="PATH", help="write a page with pictures")
    profile.add_argument("--trace", metavar="PATH", help="write a trace for Perfetto and Chrome (compressed if it ends in .gz)")
    profile.add_argument("--json", metavar="PATH", help="write all figures (compressed if it ends in .gz)")
    profile.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="print what differs between two files by --json")
    profile.add_argument("--detail", default="phase", help='"phase" (default); "kernel" times each launch on a GPU; "count"')
    profile.add_argument("--strict", action="store_true", help="fail if the cost of a launch is not known")
    profile.add_argument("--verify", action="store_true", help="run the script again under ncu, and compare with its counters")
    profile.add_argument("program", nargs="?", metavar="script.py", help="a script, or after -m a module")
    profile.add_argument("arguments", nargs=argparse.REMAINDER, help="what follows it is the script's")
    profile.set_defaults(run=_profile, error=profile.error)


def _profile(options: argparse.Namespace) -> int:
    from .profiling import command

    if (options.program is None) == (options.compare is None):
        options.error("give a script, -m and a module, or --compare and two files")
    if options.compare is not None:
        command.compare_files(*options.compare)
        return 0
    program = command.Program(options.program, options.arguments, options.is_module)
    files = {option: path for option in command.WRITERS if (path := getattr(options, option))}
    try:
        return command.profile(
            program, strict=options.strict, detail=options.detail, files=files, verify=options.verify, by=options.by
        )
    except command.NoProgramError as error:
        print(f"pullback profile: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
