"""save and load preserve structure and bits, exchange files with other programs, name damaged files, and replace atomically."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import stat
import subprocess
import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import io

DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)

RING: list[Any] = [1, []]  # a list that contains itself
RING[1].append(RING)
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


def same(a: Any, b: Any) -> bool:
    """True if a and b are equal in structure, container types, dtypes and bits."""
    if isinstance(b, (pb.Tensor, np.ndarray)):
        left, right = host(a), host(b)
        return (
            isinstance(a, pb.Tensor)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in b)
    if isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_nested_structures_come_back_as_they_were(tmp_path: Any) -> None:
    tree = {
        "model": {"0.weight": pb.tensor([[1.0, -0.0]]), "0": {"weight": pb.zeros((2, 0))}},
        "list": [pb.tensor(3), (pb.Parameter(2.0), []), None, True, 7, 1.5, float("inf"), "text", {}],
        3: np.arange(3.0),
    }
    io.save(tmp_path / "tree.safetensors", tree)
    assert same(io.load(tmp_path / "tree.safetensors"), tree)
    for leaf in (pb.tensor([1.0, 2.0]), (), 5):
        io.save(tmp_path / "leaf", leaf)
        assert same(io.load(tmp_path / "leaf"), leaf)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_every_dtype_keeps_its_bits(dtype: str, shape: Any, tmp_path: Any) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    bits = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, (*shape, kind.itemsize)).astype(np.uint8)
    x = pb.tensor(np.frombuffer(bits.tobytes(), kind).reshape(shape))
    io.save(tmp_path / "x", {"x": x, "turned": x.T})
    assert same(io.load(tmp_path / "x"), {"x": x, "turned": x.T})


def test_other_programs_read_our_files_and_we_read_theirs(tmp_path: Any) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    io.save(tmp_path / "ours", {"a": [pb.tensor([1.0, 2.0])], "b.c": pb.tensor([3])})
    theirs = library.load_file(tmp_path / "ours")
    assert sorted(theirs) == ["a.0", "b.c"]
    assert theirs["a.0"].tolist() == [1.0, 2.0]
    library.save_file({"w": np.ones((2, 2), np.float32), "b": np.zeros(2)}, tmp_path / "theirs")
    got = io.load(tmp_path / "theirs")
    assert same(dict(sorted(got.items())), {"b": np.zeros(2), "w": np.ones((2, 2), np.float32)})


def test_any_cut_of_a_file_is_told_and_names_it(tmp_path: Any) -> None:
    path = tmp_path / "whole"
    io.save(path, {"weight": pb.tensor(np.arange(5.0)), "step": 3})
    data = path.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        with pytest.raises(pb.FileFormatError, match=r"cut\.safetensors"):
            io.load(cut)


@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04 a zip file of some kind",
        pickle.dumps({"a": np.ones(3)}),
        b"\x93NUMPY\x01\x00v\x00{'descr'",
        b"{}",
        b"\0" * 64,
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (8).to_bytes(8, "little") + b'{"a": 1}',
        (2).to_bytes(8, "little") + b"{}x",
    ],
    ids=range(9),
)
def test_a_foreign_file_is_refused_in_words(data: bytes, tmp_path: Any) -> None:
    (tmp_path / "other.bin").write_bytes(data)
    with pytest.raises(pb.FileFormatError, match=r"other\.bin.*not a"):
        io.load(tmp_path / "other.bin")


def test_no_tensor_takes_the_name_of_the_files_metadata(tmp_path: Any) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    tree = {"__metadata__": pb.ones(1), "__metadata___": pb.zeros(2)}
    io.save(tmp_path / "x", tree)
    assert same(io.load(tmp_path / "x"), tree)
    assert len(library.load_file(tmp_path / "x")) == 2


def test_names_that_a_module_gave_are_strings_to_save(tmp_path: Any) -> None:
    model = pb.nn.Sequential(pb.nn.Linear(2, 2))
    io.save(tmp_path / "x", {"n": model.parameters()[0].name, "s": np.str_("text")})
    assert io.load(tmp_path / "x") == {"n": "0.weight", "s": "text"}


def test_a_link_is_written_through(tmp_path: Any) -> None:
    (tmp_path / "disk").mkdir()
    link, target = tmp_path / "link", tmp_path / "disk" / "file"
    link.symlink_to(target)
    for value in (1.0, 2.0):  # The first save creates the file.
        io.save(link, pb.tensor(value))
        assert link.is_symlink()
        assert io.load(target).item() == value
    assert os.listdir(tmp_path / "disk") == ["file"]


def test_a_missing_folder_is_told_with_the_users_path(tmp_path: Any) -> None:
    path = tmp_path / "no" / "state"
    with pytest.raises(FileNotFoundError) as caught:
        io.save(path, 1)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("folder", IsADirectoryError, "that of a folder, which a file cannot replace. Give the name of a file in it"),
        ("no/state", FileNotFoundError, 'there is no folder ".*no". Make it first'),
        ("file/state", NotADirectoryError, '".*file" is no folder'),
        ("n" * 300, OSError, "name too long"),
    ],
)
def test_a_path_that_no_file_can_have_is_told_in_words(name: str, kind: type[OSError], words: str, tmp_path: Any) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(kind, match=f"save: .*{words}") as caught:
        io.save(tmp_path / name, {"x": pb.ones(2)})
    assert (type(caught.value), caught.value.filename) == (kind, str(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT])
def test_a_folder_that_takes_no_file_is_told(number: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=f'save: no file can be written in the folder "{tmp_path}"') as caught:
        io.save(tmp_path / "state", 1)
    assert (caught.value.errno, type(caught.value)) == (number, type(OSError(number, "")))


@pytest.mark.parametrize("path", [3, None, b"state"])
def test_what_is_no_path_is_told(path: Any) -> None:
    for name, call in (("save", lambda: io.save(path, 1)), ("load", lambda: io.load(path))):
        with pytest.raises(TypeError, match=rf"{name}: the path of the file is of type {type(path).__name__}\. Give a str"):
            call()


def test_a_damaged_structure_is_refused_and_never_run(tmp_path: Any) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    for structure in (
        '{"tensor": "gone"}',
        "[",
        '{"call": "os.system"}',
        "3",
        '{"list": 3}',
        '{"a": 1, "b": 2}',
        '{"dict": [["k"]]}',
        '{"value": {"a": 1}}',
        '{"value": [1]}',
        '{"dict": [[1.5, {"value": 1}]]}',
        "{}",
    ):
        library.save_file({"x": np.ones(2)}, tmp_path / "bad", {io.STRUCTURE: structure})
        with pytest.raises(pb.FileFormatError, match="bad"):
            io.load(tmp_path / "bad")


def test_a_folder_is_no_file_and_a_missing_file_is_missing(tmp_path: Any) -> None:
    with pytest.raises(pb.FileFormatError, match=r"is a folder\. Give the path of a file in it"):
        io.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"load: there is no such file.*nothing"):
        io.load(tmp_path / "nothing")


def test_a_save_that_fails_leaves_the_old_file_and_no_other(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    io.save(path, {"x": pb.tensor([1.0])})
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        io.save(path, {"x": pb.tensor([2.0])})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": [object()]}, r'"a\.0" is a object'),
        ({(1, 2): 3}, "keys are strings"),
        ({"z": np.ones(2, complex)}, "complex128"),
        ({"f": lambda: 0}, "function"),
        ({"s": np.array(["text"])}, "dtype"),
        ({"m": np.ma.masked_array(np.ones(2), [True, False])}, '"m" cannot be saved: .* mask of a masked array'),
        ({"a": {"\ud800": pb.ones(1)}}, r'"a" is .*unpaired surrogate'),
        ({"a": RING}, r'the list at "a\.1\.0" contains itself'),
        (DEEP, "too deeply"),
    ],
)
def test_what_cannot_be_saved_is_named_by_its_path(tree: Any, words: str, tmp_path: Any) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        io.save(tmp_path / "x", tree)
    assert not os.listdir(tmp_path)


def file_of(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("shape", [[0, 3, 2**63 - 1], [0, 2**64 - 1], [1] * 65], ids=["int64", "uint64", "65 axes"])
def test_a_shape_that_no_array_has_is_told(shape: list[int], tmp_path: Any) -> None:
    size = 4 * math.prod(shape)
    header = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
    (tmp_path / "x").write_bytes(file_of(header, b"\0" * size))
    with pytest.raises(pb.FileFormatError, match="x"):
        io.load(tmp_path / "x")


@pytest.mark.parametrize("length", [1, 200, 255])
def test_names_as_long_as_a_file_system_takes_are_saved(length: int, tmp_path: Any) -> None:
    io.save(tmp_path / ("n" * length), pb.ones(2))
    assert os.listdir(tmp_path) == ["n" * length]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_a_file_keeps_its_mode_and_a_new_one_follows_the_umask(mode: int, tmp_path: Any) -> None:
    path = tmp_path / "x"
    io.save(path, 1)
    (tmp_path / "plain").write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    path.chmod(mode)
    io.save(path, 2)
    assert (stat.S_IMODE(path.stat().st_mode), io.load(path)) == (mode, 2)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner(tmp_path: Any) -> None:
    io.save(tmp_path / "x", 1)
    os.chown(tmp_path / "x", 12345, 23456)
    io.save(tmp_path / "x", 2)
    assert ((tmp_path / "x").stat().st_uid, (tmp_path / "x").stat().st_gid) == (12345, 23456)


def test_another_name_of_a_file_keeps_the_old_contents(tmp_path: Any) -> None:
    io.save(tmp_path / "x", 1)
    os.link(tmp_path / "x", tmp_path / "other")
    io.save(tmp_path / "x", 2)
    assert (io.load(tmp_path / "x"), io.load(tmp_path / "other")) == (2, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX's")
def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(pb.PullbackError, match="not a regular file"):
        io.save(tmp_path / "pipe", 1)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("last", ["write", "fsync", "replace"])
def test_a_save_that_is_killed_leaves_the_old_file_whole_and_the_next_one_clears_up(last: str, tmp_path: Any) -> None:
    path = tmp_path / "state"
    io.save(path, {"x": pb.tensor([1.0])})
    program = f"""
import os, signal, pullback as pb
from pullback import io
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if {last!r} == "write":
    io._like_the_old = die
else:
    setattr(os, {last!r}, die)
pb.save({str(path)!r}, {{"x": pb.zeros(1000)}})
"""
    assert subprocess.run([sys.executable, "-c", program], env=os.environ).returncode == -9
    assert io.load(path)["x"].item() == 1.0
    assert len(os.listdir(tmp_path)) == 2
    io.save(path, {"x": pb.tensor([2.0])})
    assert os.listdir(tmp_path) == ["state"]


def test_what_another_save_is_writing_is_not_taken_away(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = os.fsync

    def save_another(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        io.save(tmp_path / "b", 2)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", save_another)
    io.save(tmp_path / "a", 1)
    assert (io.load(tmp_path / "a"), io.load(tmp_path / "b")) == (1, 2)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_folder_that_cannot_be_opened_takes_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "listdir", lambda path: refuse(path, 0))
    io.save(tmp_path / "x", 3)
    monkeypatch.undo()
    assert io.load(tmp_path / "x") == 3


def test_a_parameter_that_another_thread_changes_meanwhile_is_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.numpy as library

    p, serialize = pb.Parameter(np.ones(4), name="weight"), library.save

    def save_late(*arguments: Any) -> bytes:
        thread = threading.Thread(target=lambda: p.assign(np.zeros(4)))
        thread.start()
        thread.join()
        return serialize(*arguments)

    monkeypatch.setattr(library, "save", save_late)
    with pytest.raises(pb.PullbackError, match='Parameter "weight" was changed by another thread'):
        io.save(tmp_path / "x", {"p": p})
    assert not os.listdir(tmp_path)


def test_the_bytes_are_on_the_disk_before_the_file_takes_its_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: (done.append(name), real(*args))[1])
    pb.save(tmp_path / "x.safetensors", {"x": pb.ones(3)})
    assert done[:2] == ["fsync", "replace"]
