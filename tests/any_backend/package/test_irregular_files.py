"""Pipes, devices, endless and sparse files in the place of files: refused in words, without waiting and without reading them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import io, nn, optim
from pullback.data import Loader
from pullback.profiling import command, peaks, recorded

if not hasattr(os, "mkfifo"):
    pytest.skip("pipes with names are POSIX's", allow_module_level=True)


def _trained() -> tuple[Any, Any]:
    model = nn.Linear(2, 2)
    return model, optim.SGD(model.parameters(), lr=0.1)


READERS: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "load": (pb.load, pb.FileFormatError),
    "load_training": (lambda path: pb.load_training(path, *_trained()), pb.PullbackError),
    "Loader": (lambda path: Loader((str(path),), batch_size=2), OSError),
    "profile": (recorded.read, pb.PullbackError),
    "script": (lambda path: command.run(command.Program(str(path))), command.NoProgramError),
}
TERABYTE = 2**40


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    """Ends a test that waits."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


PLACES: dict[str, Callable[[Path], Path]] = {
    "pipe": pipe,
    "link to a pipe": lambda folder: (folder / "link", (folder / "link").symlink_to(pipe(folder)))[0],
    "zeros": lambda folder: Path("/dev/zero"),
    "link to zeros": lambda folder: (folder / "link", (folder / "link").symlink_to("/dev/zero"))[0],
    "null": lambda folder: Path("/dev/null"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_at_once(reader: str, place: str, tmp_path: Path) -> None:
    read, error = READERS[reader]
    with pytest.raises(error, match="it is no regular file"):
        read(PLACES[place](tmp_path))


@pytest.mark.parametrize("place", [*PLACES, "sparse"])
def test_peaks_are_not_read_from_it(place: str, tmp_path: Path) -> None:
    path = sparse(tmp_path, b"") if place == "sparse" else PLACES[place](tmp_path)
    assert peaks._read(path, {}) is None


def sparse(folder: Path, start: bytes) -> Path:
    """Returns a file of a terabyte of zeros after the start, which takes no room on the disk."""
    path = folder / "sparse"
    with open(path, "wb") as file:
        file.write(start)
        try:
            file.truncate(TERABYTE)
        except OSError:
            pytest.skip("the file system has no files of a terabyte")
    return path


def headed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (headed(b"{}          "), "its header describes 20 bytes"),
        (headed(b'{"a": 1}    '), "its header is damaged"),
        (headed(b"{a           "), "its header is damaged"),
        (b"", "is not a safetensors file: it begins with"),
        (b"PK\x03\x04", "torch.save, np.save"),
        (b'{"weight_map": ', "is not a safetensors file: it begins with"),
    ],
    ids=range(6),
)
def test_a_terabyte_is_not_read_before_its_header_is(start: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        pb.load(sparse(tmp_path, start))


def test_a_sparse_profile_and_a_sparse_script_are_too_large(tmp_path: Path) -> None:
    path = sparse(tmp_path, b"")
    for reader in ("profile", "script"):
        with pytest.raises(pb.PullbackError, match="it has more than"):
            READERS[reader][0](path)


def test_a_null_character_in_a_path_is_told(tmp_path: Path) -> None:
    for reader in ("load", "Loader", "profile"):
        read, error = READERS[reader]
        with pytest.raises(error, match="a path has no null characters"):
            read(Path(f"{tmp_path}/a\0b"))


@pytest.mark.parametrize("twice", ['{"a": {}, "a": {}}', '{"__metadata__": {"k": "1", "k": "2"}}'])
def test_a_name_that_a_header_has_twice_is_refused(twice: str, tmp_path: Path) -> None:
    (tmp_path / "twice").write_bytes(headed(twice.encode()))
    with pytest.raises(pb.FileFormatError, match="twice"):
        pb.load(tmp_path / "twice")


def test_a_key_that_a_structure_has_twice_is_refused(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    value = {"value": 1}
    for keys in (["k", "k"], [1, 1], [1, True]):
        structure = json.dumps({"dict": [[key, value] for key in keys]})
        library.save_file({"x": np.ones(2)}, tmp_path / "bad", {io.STRUCTURE: structure})
        with pytest.raises(pb.FileFormatError, match="a dict has a key twice"):
            pb.load(tmp_path / "bad")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x", "a": "y"}}')
    with pytest.raises(pb.FileFormatError, match="'a' twice"):
        pb.load(tmp_path / "model.safetensors.index.json")
