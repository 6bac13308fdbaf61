"""The command line: `pullback info`, `pullback train digits`, `pullback hash FILE`, `pullback profile script.py`."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

from . import config, variables
from .errors import PullbackError
from .hashing import hash
from .io import load


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. A PullbackError is printed as one line, without a traceback."""
    try:
        options = _parser().parse_args(arguments)
        status = int(options.run(options))
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        return status
    except PullbackError as error:
        print(f"pullback: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # The reader, such as head, has closed the pipe. Without this, Python's final flush would complain.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    import pullback

    parser = argparse.ArgumentParser(prog="pullback", description=(pullback.__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="version", version=f"pullback {pullback.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    info = commands.add_parser("info", help="version, devices, kernels, and why something falls back")
    info.add_argument(
        "--ops", action="store_true", help="every op, its kernel on each backend, and if its bits are the same everywhere"
    )
    info.set_defaults(run=_info)
    train = commands.add_parser("train", help="train a network and show what it cost")
    train.add_argument("data", choices=["digits"], help="digits: 1,797 handwritten digits, in the package")
    train.add_argument("--model", default="mlp", help="mlp (default)")
    train.add_argument("--epochs", type=int, default=30, help="passes over the training images (default 30)")
    train.add_argument("--batch-size", type=int, default=64, help="images of a step (default 64)")
    train.add_argument("--lr", type=float, default=5e-3, help="learning rate, falling to 0 (default 0.005)")
    train.add_argument("--seed", type=int, default=0, help="of weights and shuffling (default 0)")
    train.add_argument("--device", default=None, help="cpu (default), cuda, cuda:1 …")
    train.add_argument("--out", default="runs/digits", help="folder of weights and loss curve (default runs/digits)")
    train.add_argument(
        "--reproducible",
        choices=variables.MODES,
        help="the same bits on this machine or everywhere (default: everywhere, if it can)",
    )
    train.set_defaults(run=_train)
    hashes = commands.add_parser(
        "hash",
        help="print the SHA-256 of the tensors in files",
        description="Prints a line for each file: the SHA-256 of the names, shapes, dtypes and values of its tensors, and the "
        "path. The order of the tensors makes no difference. pb.hash(pb.load(FILE)) returns the same.",
    )
    hashes.add_argument("files", nargs="+", metavar="FILE", help="a safetensors file, by pb.save or another program")
    hashes.set_defaults(run=_hash)
    _add_profile(commands)
    return parser


def _add_profile(commands: Any) -> None:
    profile = commands.add_parser(
        "profile",
        allow_abbrev=False,
        usage="pullback profile [options] (script.py | -m module) [arguments of the script]",
        help="run a script and show what its forward and backward passes cost",
        description="Runs a script unchanged and prints, to stderr, what its main thread cost, forward and backward. The exit "
        "status is the script's.",
    )
    profile.add_argument("-m", action="store_true", dest="is_module", help="the name of a module follows, as after python -m")
    profile.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="AXIS",
        help='show a table by "op", "module", "line", "kernel", "order" or "dtype" instead of those by op and module (repeatable)',
    )
    profile.add_argument("--html", metavar="PATH", help="write a page with pictures")
    profile.add_argument("--trace", metavar="PATH", help="write a trace for Perfetto and Chrome (compressed if it ends in .gz)")
    profile.add_argument("--json", metavar="PATH", help="write all figures (compressed if it ends in .gz)")
    profile.add_argument("--detail", default="phase", help='"phase" (default); "kernel" times each launch on a GPU; "count"')
    profile.add_argument("--strict", action="store_true", help="fail where the cost of a launch is not known")
    profile.add_argument("--verify", action="store_true", help="run the script again under ncu, and compare with its counters")
    profile.add_argument("program", metavar="script.py", help="a script, or after -m a module")
    profile.add_argument("arguments", nargs=argparse.REMAINDER, help="what follows it is the script's")
    profile.set_defaults(run=_profile)


# ---- info


def _info(options: argparse.Namespace) -> int:
    importlib.import_module("pullback.ops.random")  # Importing the module declares its ops.

    if options.ops:
        _show_table("ops", ("op", "kind", "cpu", "cuda", "same bits everywhere"), _op_rows())
        return 0
    rows = _facts()
    width = max([len(name) for name, _ in rows])
    for name, fact in rows:
        print(f"{name.ljust(width)}  {fact}")
    for warning in _warnings():
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _facts() -> list[tuple[str, str]]:
    import numpy as np

    from . import __version__, backends
    from .autodiff.primitive import OPS
    from .backends import native
    from .profiling.peaks import processor
    from .tensors import devices

    module = native.module
    native_count = len([op for op in OPS.values() if op.native])
    views = len([op for op in OPS.values() if _is_view(op)])
    others = len(OPS) - native_count - views
    return [
        ("pullback", __version__),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("NumPy", np.__version__),
        ("cpu", f"{processor()}, {os.cpu_count()} logical processors"),
        ("cuda", _gpus() if devices.cuda.is_available() else f"no: {devices.cuda.why_not()}"),
        ("CUDA kernels", "yes" if backends.why_not("cuda") is None else f"no: {backends.why_not('cuda')}"),
        ("CUDA libraries", _cuda_libraries()),
        ("CPU kernels", "yes" if backends.why_not("cpu") is None else f"no: {backends.why_not('cpu')}"),
        ("SIMD", native.simd_level()),
        ("BLAS", "NumPy's" if module is None else f"{module.blas_config()}, running its {module.blas_core()} kernels"),
        ("reproducible", _reproducible()),
        ("CPU cache", native.cache_limit()),
        ("threads", str(module.thread_count()) if module is not None else "NumPy's"),
        ("ops", f"{native_count} native, {views} views without a kernel, {others} by reference (pullback info --ops)"),
    ]  # fmt: skip


def _reproducible() -> str:
    """Returns the mode with what set it, or with what can."""
    if variables.is_set("PULLBACK_REPRODUCIBLE"):
        return f"{config.reproducible} (PULLBACK_REPRODUCIBLE={variables.reproducible()})"
    why_not = config.why_not()
    other = f"is not possible: {why_not}" if why_not else "is possible: PULLBACK_REPRODUCIBLE, pb.config.reproducible"
    return f'{config.reproducible} ("everywhere" {other})'


def _gpus() -> str:
    from .tensors import gpu

    found = gpu.need()
    if found.simulated:
        return "simulated on the CPU: kernels are tested here, not timed"
    properties = [found.xp.cuda.runtime.getDeviceProperties(i) for i in range(found.count())]
    return ", ".join([f"{p['name'].decode()} (sm_{p['major']}{p['minor']})" for p in properties])


def _cuda_libraries() -> str:
    """Returns the CUDA libraries that the dynamic loader finds, and the installed wheels of NVIDIA and CuPy, as text."""
    from ctypes.util import find_library
    from importlib import metadata

    wheels = {
        str(d.metadata["Name"]): d.version
        for d in metadata.distributions()
        if str(d.metadata["Name"]).startswith(("nvidia-", "cupy"))
    }
    system = [name for name in ("cuda", "cudart", "nvrtc", "cublas") if find_library(name)]
    found = [f"lib{name}" for name in system] + [f"{name} {version}" for name, version in sorted(wheels.items())]
    return ", ".join(found) or "none found"


def _warnings() -> list[str]:
    """Returns warnings about environment variables that silently make products slower or change their rounding."""
    told = {
        "OPENBLAS_CORETYPE": "overrides the kernels that OpenBLAS would choose for this processor",
        "OPENBLAS_L2_SIZE": "overrides the cache size by which OpenBLAS cuts its blocks",
    }
    return [
        f"{name}={os.environ[name]} {what}: products may be slow, and their rounding differs. Unset it unless you mean it."
        for name, what in told.items()
        if os.environ.get(name)
    ]


def _is_view(op: Any) -> bool:
    """True for ops that only view or move memory, so that no backend needs a kernel for them."""
    return not op.native and op.same_bits is True


def _op_rows() -> list[tuple[str, ...]]:
    from . import backends
    from .autodiff.primitive import OPS
    from .tensors import gpu

    kernels = None if backends.why_not("cuda") else gpu.need().kernels
    rows: list[tuple[str, ...]] = []
    for op in sorted(OPS.values(), key=lambda op: op.name):
        on_cpu = "native" if op.native else f"NumPy: {op.why_reference}"
        on_cuda = "native" if hasattr(kernels, getattr(op.kernel, "__name__", op.name)) else "CuPy"
        if _is_view(op):
            on_cpu = on_cuda = "view: no kernel runs"
        rows.append((op.name, op.kind.name, on_cpu, on_cuda, "yes" if op.same_bits is True else f"no: {op.same_bits}"))
    return rows


def _show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title if numbers else None, box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and i else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


# ---- train


def _train(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from .examples import digits as train
    from .profiling import table

    try:
        os.makedirs(options.out, exist_ok=True)  # If this fails, it must fail before an hour of training, not after it.
    except OSError as error:
        words = f'train: the folder "{options.out}" cannot be made: {error.strerror}. Give --out another one.'
        raise PullbackError(words) from error
    bar = lambda epochs: tqdm(epochs, desc=f"{options.model} on {options.data}", unit="epoch", dynamic_ncols=True)
    result = train.train_digits(
        options.model, epochs=options.epochs, batch_size=options.batch_size, lr=options.lr, seed=options.seed,
        device=options.device, reproducible=options.reproducible, progress=bar,
    )  # fmt: skip
    try:
        weights, page, curve = train.write(result, options.out)
    except OSError as error:
        raise PullbackError(f'train: results cannot be written to "{options.out}": {error}. Give --out another folder.') from error
    _show_table(f"{result.steps} steps", table.COLUMNS, table.phase_rows(result.profile), numbers=True)
    print(f"test accuracy  {result.accuracy:.2%}")
    print(f"time           {result.seconds:.2f} s, {result.seconds / result.steps * 1e3:.3f} ms a step")
    print(f"weights        {weights}")
    print(f"profile        {page}")
    print(f"loss curve     {curve or 'not drawn, matplotlib is missing: pip install ' + repr('pullback[plot]')}")
    print(f"reproducible   {result.reproducible}{result.why_machine and f', because {result.why_machine}'}")
    print(f"hash           {hash(result.model)}")
    return 0


# ---- hash


def _hash(options: argparse.Namespace) -> int:
    status = 0
    for path in options.files:
        try:
            print(f"{hash(load(path, device='cpu'))}  {path}")
        except (PullbackError, OSError) as error:
            words = f'{error.strerror}: "{path}"' if isinstance(error, OSError) else error
            print(f"pullback: {words}", file=sys.stderr)
            status = 1
    return status


# ---- profile


def _profile(options: argparse.Namespace) -> int:
    from .profiling import command

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
