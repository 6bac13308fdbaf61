"""The package runs where Python has nothing of POSIX, as on Windows: no fcntl, no fork, no owners of files, no /proc."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import environment

# What Python for Windows lacks. The standard library and NumPy look for most of it when they are imported, so that happens before.
PRELUDE = """
import ctypes, ctypes.util, importlib.metadata, multiprocessing, os, platform, shutil, signal, subprocess, sys, tempfile, warnings
import ml_dtypes, numpy, optree, rich.console, rich.table, safetensors.numpy, tqdm

platform.uname(), platform.processor()
for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None  # importing it raises ImportError
ctypes.util.find_library = lambda name: None  # the one of Linux uses os.uname
for name in '''chown chroot fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid getuid getxattr initgroups
    killpg lchown listxattr mkfifo mknod nice pathconf posix_fadvise posix_spawn pread pwrite register_at_fork removexattr
    sched_getaffinity sched_setaffinity sched_yield sendfile setgid setsid setuid setxattr statvfs sysconf uname wait3 wait4
    O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC'''.split():
    if hasattr(os, name):
        delattr(os, name)
for name in "SIGKILL SIGALRM SIGHUP SIGUSR1 SIGUSR2 SIGQUIT SIGSTOP SIGCHLD alarm setitimer pthread_kill pthread_sigmask".split():
    delattr(signal, name)
opens = os.open


def open_no_folder(path, *args, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "a folder cannot be opened", path)
    return opens(path, *args, **options)


def refuse(event, args):
    if event == "open" and str(args[0]).startswith(("/proc", "/sys", "/dev")):
        raise FileNotFoundError(2, "this is not Linux", args[0])


os.open = open_no_folder
sys.addaudithook(refuse)
# On Windows, text is not written in UTF-8 unless the program says so.
warnings.filterwarnings("error", category=EncodingWarning, module=r"pullback\\.")
"""

IMPORTS = """
import importlib, pkgutil
import pullback

for found in pkgutil.walk_packages(pullback.__path__, "pullback."):
    name = found.name.rpartition(".")[2]
    if name != "__main__" and not name.startswith("_c") and name != "_level":  # compiled modules
        importlib.import_module(found.name)
print("imported")
"""

FILES = """
import pullback as pb

net = pb.nn.Linear(3, 2)
for _ in range(2):  # the second time replaces a file
    pb.save("weights.safetensors", net.state_dict())
    pb.save_training("run.safetensors", net, pb.optim.Adam(net.parameters()))
assert sorted(os.listdir()) == ["run.safetensors", "weights.safetensors"], os.listdir()
print(pb.load("weights.safetensors")["weight"].shape)
"""

COMMANDS = """
from pullback.cli import main

open("script.py", "w", encoding="utf-8").write("import pullback as pb; pb.sum(pb.ones(3))")
statuses = [
    main(["info"]), main(["info", "--ops"]), main(["train", "digits", "--epochs", "1", "--out", "out"]),
    main(["hash", "out/weights.safetensors"]), main(["profile", "--html", "page.html", "--json", "p.json", "script.py"]),
]
print(statuses)
"""


@pytest.mark.parametrize(
    ("program", "last"),
    [(IMPORTS, "imported"), (FILES, "(2, 3)"), (COMMANDS, "[0, 0, 0, 0, 0]")],
    ids=["imports", "files", "commands"],
)
def test_without_posix(tmp_path: Path, program: str, last: str) -> None:
    variables = {"PULLBACK_BACKEND": "reference", "PULLBACK_DEVICE": "cpu", "PULLBACK_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-X", "warn_default_encoding", "-c", PRELUDE + program]
    done = subprocess.run(command, cwd=tmp_path, env=environment(**variables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == last


def test_output_fits_into_the_code_page_of_a_western_windows(tmp_path: Path) -> None:
    variables = {"PULLBACK_BACKEND": "reference", "PULLBACK_DEVICE": "cpu", "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    for arguments in (["info"], ["train", "digits", "--epochs", "1"], ["profile", "-m", "pullback.examples.digits"]):
        command = [sys.executable, "-m", "pullback", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment(**variables), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode("cp1252")
