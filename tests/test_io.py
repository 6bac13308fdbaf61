"""save and load: structure and bits come back, other programs read the files, a damaged file is named, a save is all or nothing."""

from __future__ import annotations

import os
import pickle
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

RING: list[Any] = [1, []]  # contains itself
RING[1].append(RING)
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


def same(a: Any, b: Any) -> bool:
    """Equal in structure, types of containers, dtypes and bits."""
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
    for value in (1.0, 2.0):  # the first makes the file
        io.save(link, pb.tensor(value))
        assert link.is_symlink()
        assert io.load(target).item() == value
    assert os.listdir(tmp_path / "disk") == ["file"]


def test_a_missing_folder_is_told_with_the_users_path(tmp_path: Any) -> None:
    path = tmp_path / "no" / "state"
    with pytest.raises(FileNotFoundError) as caught:
        io.save(path, 1)
    assert caught.value.filename == str(path)


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
        "{}",
    ):
        library.save_file({"x": np.ones(2)}, tmp_path / "bad", {io.STRUCTURE: structure})
        with pytest.raises(pb.FileFormatError, match="bad"):
            io.load(tmp_path / "bad")


def test_a_folder_is_no_file_and_a_missing_file_is_missing(tmp_path: Any) -> None:
    with pytest.raises(pb.FileFormatError, match="cannot be read"):
        io.load(tmp_path)
    with pytest.raises(FileNotFoundError):
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
        ({"a": {"\ud800": pb.ones(1)}}, r'"a" is .*half a character'),
        ({"a": RING}, r'the list at "a\.1\.0" contains itself'),
        (DEEP, "too deeply"),
    ],
)
def test_what_cannot_be_saved_is_named_by_its_path(tree: Any, words: str, tmp_path: Any) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        io.save(tmp_path / "x", tree)
    assert not os.listdir(tmp_path)
