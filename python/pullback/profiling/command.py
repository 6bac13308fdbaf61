"""`pullback profile script.py`: runs any script unchanged inside a profile, and reports what it cost.

The report goes to stderr, like the reports of `time`, `perf stat` and valgrind, so that the script's stdout can still be piped.
(cProfile prints to stdout, where the two outputs mix; `coverage run` prints nothing.) A profile covers one thread, here the main
one. The report states how many launches the script's other threads made, but their costs are not in the tables.
"""

from __future__ import annotations

import builtins
import os
import pkgutil
import runpy
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, NamedTuple

from .. import outputs, variables
from ..errors import PullbackError
from ..launch.ledger import Detail
from ..regular_files import read_regular
from .compare import compare
from .figures import AXES
from .recorded import read
from .session import Profile
from .table import phase_table
from .verify import check_gpu, count, verified

MOST: Final = 2**30  # bytes of a script
WRITERS: Final = {"html": "to_html", "trace": "to_trace", "json": "to_json"}  # options and the methods that write them


class Program(NamedTuple):
    """The program to run.

    Attributes:
        name: the path of a script, or of a folder or zip file with a `__main__.py`; the name of a module if `is_module`.
        arguments: the program's arguments, sys.argv[1:].
    """

    name: str
    arguments: Sequence[str] = ()
    is_module: bool = False


class NoProgramError(PullbackError):
    """There is no such script or module."""


def profile(
    program: Program, *, strict: bool, detail: Detail, files: dict[str, str], verify: bool = False, by: Sequence[Any] = ()
) -> int:
    """Runs the program in a profile, prints the tables to stderr, and writes `files`, which maps options of WRITERS to paths.

    by: the axes of the tables; the axes of print(prof) if it is empty.

    With `verify` the launches are timed, and the program runs a second time, under ncu (see verify.py). Returns the exit status of
    the program, or 1 if the program succeeded but the report is incomplete. The report of a program that fails is written too.
    Raises NoProgramError, and PullbackError if a path cannot be written or `verify` cannot work here.
    """
    if asked := variables.counting():
        return _counted(program, Path(asked[1]))
    for path in files.values():
        if reason := outputs.why_not_file(path):
            raise PullbackError(f'profile: "{path}" cannot be written: {reason}.')
    for axis in by:
        if axis not in AXES:
            raise PullbackError(f"profile: there is no axis {axis!r} to show figures by; use {', '.join(AXES)}.")
    if verify:
        check_gpu()
    prof, status, complaints = Profile(strict=strict, detail="kernel" if verify else detail), 0, list[str]()
    try:
        with prof:
            status = run(program)
    except NoProgramError:
        raise
    except PullbackError as error:  # raised by strict=True
        complaints.append(str(error))
    complaints += _report(prof, files, by)
    if verify and status == 0:
        again = [sys.executable, "-m", "pullback", "profile", *(["-m"] if program.is_module else []), program.name]
        print(verified(prof, [*again, *program.arguments], 0), file=sys.stderr)
    for complaint in complaints:
        print(f"pullback: {complaint}", file=sys.stderr)
    return status or int(bool(complaints))


def compare_files(before: str, after: str) -> None:
    """Prints what differs between two files by `--json`. Raises PullbackError if one of them cannot be read."""
    print(compare(read(before), read(after)))


def _report(prof: Profile, files: dict[str, str], by: Sequence[Any]) -> list[str]:
    """Writes the files and prints the tables. Returns one sentence per file that could not be written."""
    complaints: list[str] = []
    for option, path in files.items():
        try:
            getattr(prof, WRITERS[option])(path)
        except (OSError, PullbackError) as error:
            complaints.append(f'"{path}" could not be written: {error}')
    print(phase_table(prof, by), file=sys.stderr)
    return complaints


def _counted(program: Program, ledger: Path) -> int:
    """Does the second run, under ncu, and writes its ledger to the file."""
    statuses: list[int] = []
    count(lambda: statuses.append(run(program)), ledger)
    return statuses[0]


def run(program: Program) -> int:
    """Runs the program as Python itself would, and returns its exit status.

    Prints the traceback of an error as Python would, without the frames of this module. Raises NoProgramError.
    """
    status = _ended(program)
    try:
        outputs.flush()
    except BrokenPipeError:  # The reader, such as head, has enough of the program's output; the report goes to stderr.
        outputs.discard()
        return status or outputs.CLOSED_PIPE
    return status


def _ended(program: Program) -> int:
    """Runs the program, and returns its exit status."""
    try:
        with _as_main(program):
            _start(program)
    except NoProgramError:
        raise
    except SystemExit as ended:
        return _status_of(ended)
    except BaseException as error:
        inside = _without_our_frames(error.__traceback__)
        if inside is None and isinstance(error, ImportError):  # raised by runpy itself, which did not find the module
            raise NoProgramError(f"{error}. Give -m the name of a module that Python finds from here.") from None
        sys.excepthook(type(error), error.with_traceback(inside), inside)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


@contextmanager
def _as_main(program: Program) -> Generator[None]:
    """Sets sys.argv and sys.path as Python does for the program. Restores them and `__main__` at the end."""
    arguments, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv = [program.name, *program.arguments]
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = _place_of(program)
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = arguments, path, main


def _place_of(program: Program) -> str:
    """Returns the folder or zip file in which Python looks first for the program's imports."""
    if program.is_module:
        return os.getcwd()
    path = os.path.abspath(program.name)
    return path if pkgutil.get_importer(path) is not None else os.path.dirname(os.path.realpath(path))


def _start(program: Program) -> None:
    """Runs the program as `__main__`. Raises NoProgramError.

    A script does not run through runpy.run_path, because that sets `__file__` to the script's name as given and sys.argv[0] to the
    full path, while Python does the opposite.
    """
    path = os.path.abspath(program.name)
    if program.is_module:
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    elif not os.path.exists(path):
        raise NoProgramError(f'there is no file "{program.name}". Give the path of a script, or -m and the name of a module.')
    elif (importer := pkgutil.get_importer(path)) is not None:
        spec = importer.find_spec("__main__", None)
        loader: Any = spec and spec.loader
        if spec is None or loader is None:
            raise NoProgramError(f'"{program.name}" has no __main__.py. Give the path of a script, or -m and the name of a module.')
        _run(loader.get_code("__main__"), spec.origin, loader, __spec__=spec, __package__="")
    elif path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", path)
        _run(loader.get_code("__main__"), path, loader)
    else:
        _run(compile(_source(path), path, "exec", dont_inherit=True), path, SourceFileLoader("__main__", path))


def _source(path: str) -> bytes:
    try:
        return read_regular(path, MOST)
    except OSError as error:
        raise NoProgramError(f'"{path}" cannot be read: {error.strerror}.') from None


def _run(code: Any, path: str | None, loader: object, **names: Any) -> None:
    module = ModuleType("__main__")
    vars(module).update(__builtins__=builtins, __file__=path, __loader__=loader, __cached__=None, **names)
    sys.modules["__main__"] = module
    exec(code, vars(module))


def _status_of(ended: SystemExit) -> int:
    """Returns the exit status of a SystemExit as Python does: None gives 0; a value that is no integer is printed and gives 1."""
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    ours = {function.__code__.co_filename for function in (run, runpy.run_module)}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace
