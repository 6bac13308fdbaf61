"""The calls of the driver that allocate, free or may wait, in the eager training steps: `python waits.py`.

A step that has run before should make none of them: each may wait for the device, and then the host no longer works ahead. The
process starts itself again under calls.c, which counts. The simulator has no driver; there the allocator counts its own calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import device
from workloads import PRECISIONS, nets

HERE = Path(__file__).resolve().parent
STEPS = 5  # the first one, which allocates the slots of the optimizer, is reported alone
LIBRARY = "calls.so"


def compile_shim(folder: Path) -> Path:
    """Compiles calls.c into the folder, and returns the library."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("there is no C compiler for calls.c: set CC")
    library = folder / LIBRARY
    flags = ["-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, str(HERE / "calls.c"), "-o", str(library), "-ldl"], check=True)
    return library


def restart() -> None:
    """Runs this program again under calls.c, and ends with its status."""
    with tempfile.TemporaryDirectory() as folder:
        preload = [str(compile_shim(Path(folder))), *filter(None, [os.environ.get("LD_PRELOAD")])]
        environment = {**os.environ, "LD_PRELOAD": os.pathsep.join(preload)}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)


class Driver:
    """The counts of calls.c, which is loaded before all other libraries."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.library.calls_name.restype = ctypes.c_char_p
        self.library.calls_made.restype = ctypes.c_long
        self.names = [self.library.calls_name(k).decode() for k in range(self.library.calls_functions())]

    def counts(self) -> Counter[str]:
        return Counter({name: self.library.calls_made(k) for k, name in enumerate(self.names)})

    @contextlib.contextmanager
    def places(self) -> Iterator[Counter[str]]:
        """Counts the calls of the block by function and by line of pullback's Python."""
        found: Counter[str] = Counter()

        @ctypes.CFUNCTYPE(None, ctypes.c_int)
        def called(function: int) -> None:
            found[f"{self.names[function]} in {line_of_package()}"] += 1

        gc.disable()  # it would release arrays inside of the allocator
        self.library.calls_listen(called)
        try:
            yield found
        finally:
            self.library.calls_listen(None)
            gc.enable()


def line_of_package() -> str:
    """Returns the innermost line of pullback's Python that this thread is in."""
    import pullback as pb

    package = str(Path(pb.__file__).parent) + os.sep
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    return "other code" if frame is None else f"{frame.f_code.co_filename.removeprefix(package)}:{frame.f_lineno}"


def allocator(found: Any) -> Counter[str]:
    allocations, releases = found.kernels.driver_calls()
    return Counter({"allocations": allocations, "releases": releases})


def per_step(step: Callable[[], Any], counts: Callable[[], Counter[str]]) -> list[Counter[str]]:
    """Returns the calls of each of STEPS steps. The wait after a step is not counted."""
    import pullback as pb

    steps = []
    for _ in range(STEPS):
        before = counts()
        step()
        steps.append(counts() - before)
        pb.cuda.synchronize()
    return steps


def calls_of(made: tuple[Any, ...], counts: Callable[[], Counter[str]], driver: Driver | None) -> dict[str, Any]:
    """Returns the calls of the first step, of each later one, and those of one more step by lines of Python."""
    _, _, step, x, y = made
    first, *later = per_step(lambda: step(x, y), counts)
    if driver is None:
        return {"first": first, "later": later}
    with driver.places() as where:
        step(x, y)
    return {"first": first, "later": later, "where": where}


def main() -> None:
    options = device.arguments(__doc__)
    if not options.simulated and LIBRARY not in os.environ.get("LD_PRELOAD", ""):
        restart()
    found = device.require_native(options.simulated)
    from ours import network

    import pullback as pb

    driver = None if options.simulated else Driver()
    counts = (lambda: allocator(found) + driver.counts()) if driver else (lambda: allocator(found))
    with pb.use_device("cuda"):
        for precision in PRECISIONS:
            for net in nets(options.simulated):
                try:
                    with pb.amp.autocast(precision):
                        row = calls_of(network(net), counts, driver)
                except Exception as error:
                    row = {"failed": f"{type(error).__name__}: {error}"[:1500]}
                device.put(name=net.name, precision=precision, **row)


if __name__ == "__main__":
    main()
