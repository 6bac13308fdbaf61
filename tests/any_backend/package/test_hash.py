"""pb.hash and `pullback hash`, compared with the documented format in a few lines of NumPy and the standard library."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import environment
from pullback import cli, hashing, nn, optim

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int64", "uint16", "uint64", "bool")


def written(leaves: dict[str, Any]) -> str:
    """Returns the hash as the documentation describes it."""
    digest = hashlib.sha256()
    for name, array in sorted(leaves.items()):
        for word in (name, array.dtype.name):
            digest.update(struct.pack("<q", len(word.encode("utf-8"))) + word.encode("utf-8"))
        digest.update(struct.pack("<q", array.ndim) + b"".join([struct.pack("<q", length) for length in array.shape]))
        values = np.array(array, order="C")
        if array.dtype.kind in "fV":
            values[np.isnan(values)] = np.nan
        digest.update(values.tobytes())
    return digest.hexdigest()


def values(dtype: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(3)
    return (rng.standard_normal(shape) * 50).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


# ---- the format


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3)], ids=str)
def test_a_tensor(dtype: str, shape: tuple[int, ...]) -> None:
    with np.errstate(invalid="ignore"):
        x = values(dtype, shape)
    assert pb.hash(pb.tensor(x)) == pb.hash(x) == pb.hash(pb.Parameter(x, trainable=False)) == written({"": x})


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "bool"])
def test_every_layout_of_the_same_values(dtype: str) -> None:
    x = values(dtype, (40, 30))
    wide = np.zeros((40, 61), x.dtype)
    wide[:, 1::2] = x
    for other in (np.asfortranarray(x), wide[:, 1::2], x[::-1][::-1], x.T.copy().T):
        assert pb.hash(other) == written({"": x})
    assert pb.hash(pb.tensor(x).mT.mT) == written({"": x})
    if dtype == "float64":
        assert pb.hash(x.astype(">f8")) == written({"": x})


@pytest.mark.parametrize("count", [hashing.CHUNK - 1, hashing.CHUNK, 3 * hashing.CHUNK + 5])
def test_arrays_of_several_chunks(count: int) -> None:
    x = np.arange(count, dtype=np.float32)
    assert pb.hash(x) == written({"": x})
    assert pb.hash(x[::-1]) == written({"": x[::-1]})
    x[[0, count // 2, count - 1]] = np.nan
    assert pb.hash(x) == written({"": x})


def test_a_large_array_is_not_copied_as_a_whole() -> None:
    import tracemalloc

    x = np.zeros((1000, 4000), np.float32)
    tracemalloc.start()
    pb.hash({"plain": x, "transposed": x.T})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < x.nbytes / 8


def test_names_are_paths_and_sorted_by_code_point() -> None:
    x, y, z = values("float32", (2,)), values("int64", (3,)), values("bool", (1,))
    tree = {"b": [x, {"é": y}], "a": (z, pb.tensor(x)), "Z": y, "a-": x, 10: x, 9: y}
    assert pb.hash(tree) == written({"b.0": x, "b.1.é": y, "a.0": z, "a.1": x, "Z": y, "a-": x, "10": x, "9": y})


def test_python_numbers_and_strings() -> None:
    tree = {"i": 3, "f": 0.5, "t": True, "s": "Adäm", "none": None, "empty": [], "np": np.float32(2)}
    leaves = {"i": np.int64(3), "f": np.float64(0.5), "t": np.bool_(True), "np": np.float32(2)}
    text = "Adäm".encode()
    wanted = hashlib.sha256()
    for name, dtype, data, shape in (  # in the order of names
        ("f", "float64", struct.pack("<d", 0.5), ()), ("i", "int64", struct.pack("<q", 3), ()),
        ("np", "float32", struct.pack("<f", 2), ()), ("s", "str", text, (5,)), ("t", "bool", b"\1", ()),
    ):
        for word in (name, dtype):
            wanted.update(struct.pack("<q", len(word)) + word.encode())
        wanted.update(struct.pack(f"<{1 + len(shape)}q", len(shape), *shape) + data)
    assert pb.hash(tree) == wanted.hexdigest()
    assert pb.hash({k: tree[k] for k in leaves}) == written(leaves)


# ---- what makes a difference, and what does not


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nans_are_equal_and_zeros_are_not(dtype: str) -> None:
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize]
    plain = np.full(4, np.nan, np.dtype(getattr(ml_dtypes, dtype, dtype)))
    strange = plain.copy()
    strange.view(bits)[1:3] |= bits(5)  # another payload
    strange.view(bits)[2] |= bits(1) << bits(8 * plain.itemsize - 1)  # and the sign
    assert strange.tobytes() != plain.tobytes()
    assert np.isnan(strange).all()
    assert pb.hash(strange) == pb.hash(plain) == pb.hash(pb.tensor(strange)) == written({"": plain})
    assert pb.hash(np.zeros(2, plain.dtype)) != pb.hash(-np.zeros(2, plain.dtype))
    quiet = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8 << 48}[dtype]
    assert (hashing._array_of(np.nan, "")[1].dtype, next(hashing._chunks(-strange)).view(bits)[2]) == (np.float64, quiet)


@pytest.mark.filterwarnings("error")
def test_signalling_nans_and_other_bytes_of_true() -> None:
    signalling = np.array([0x7F81, 0xFF81], np.uint16).view(ml_dtypes.bfloat16)
    assert pb.hash(signalling) == pb.hash(np.full(2, np.nan, ml_dtypes.bfloat16))
    assert pb.hash(np.array([2, 0, 255], np.uint8).view(bool)) == pb.hash(np.array([True, False, True]))


def test_names_shapes_dtypes_and_each_value_count() -> None:
    x = np.arange(6, dtype=np.float32)
    last = x.copy()
    last[-1] = np.nextafter(x[-1], np.float32(0))
    trees = [{"a": x}, {"b": x}, {"a": x.reshape(2, 3)}, {"a": x.astype(np.int32)}, {"a": x.view(np.int32)}, {"a": last}, x, [x],
             {"a": x, "b": x}, [x, x], {"a": [x]}, {}]
    assert len({pb.hash(tree) for tree in trees}) == len(trees)
    assert pb.hash({}) == pb.hash([None]) == hashlib.sha256(b"").hexdigest()


def test_the_order_of_entries_and_the_kind_of_container_do_not_count() -> None:
    x, y = np.ones(2), np.zeros(3)
    same = [{"a": {"b": x}, "c": y}, {"c": y, "a": {"b": x}}, OrderedDict(c=y, a={"b": x}), {"a.b": x, "c": y}]
    assert len({pb.hash(tree) for tree in same}) == 1
    assert pb.hash([x, y]) == pb.hash((x, y)) == pb.hash({"0": x, "1": y})


# ---- networks, optimizers, files


def network() -> nn.Module:
    pb.random.seed(4)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def test_a_module_counts_as_its_state_dict(tmp_path: Path) -> None:
    net = network()
    state = {name: t.numpy() for name, t in net.state_dict().items()}
    assert pb.hash(net) == pb.hash(net.state_dict()) == written(state)
    assert pb.hash({"net": net, "x": 1}) == pb.hash({"net": net.state_dict(), "x": 1})
    net.parameters()[0].assign(net.parameters()[0] + 1)
    assert pb.hash(net) != written(state)


def test_a_training_that_was_saved_and_loaded(tmp_path: Path) -> None:
    net = network()
    opt = optim.Adam(net.parameters(), lr=optim.schedules.Cosine(1e-2, steps=9))
    opt.minimize(lambda: pb.sum(net(pb.ones((2, 3))) ** 2))
    tree = {"model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 3, "note": "first", "rate": 0.5}
    wanted = pb.hash(tree)
    assert pb.hash({**tree, "model": net, "optimizer": opt}) == wanted
    pb.save(tmp_path / "a.safetensors", tree)
    pb.save(tmp_path / "b.safetensors", dict(reversed(tree.items())))
    assert pb.hash(pb.load(tmp_path / "a.safetensors")) == pb.hash(pb.load(tmp_path / "b.safetensors")) == wanted
    other = network()
    other.load_state_dict(pb.load(tmp_path / "a.safetensors")["model"])
    assert pb.hash(other) == pb.hash(net)
    opt.minimize(lambda: pb.sum(net(pb.ones((2, 3))) ** 2))
    assert pb.hash(opt) != pb.hash(tree["optimizer"])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import save_file

    x, y = values("float32", (5, 4)), values("int64", (3,))
    paths = [str(tmp_path / name) for name in ("ours.safetensors", "theirs.safetensors")]
    pb.save(paths[0], {"y": pb.tensor(y), "net": {"x": pb.tensor(x)}})
    save_file({"net.x": x, "y": y}, paths[1])
    assert cli.main(["hash", *paths]) == 0
    wanted = written({"net.x": x, "y": y})
    assert capsys.readouterr() == ("".join([f"{wanted}  {path}\n" for path in paths]), "")


def test_the_command_goes_on_after_a_file_that_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, cut, missing = (str(tmp_path / name) for name in ("good", "cut", "missing"))
    pb.save(good, {"x": pb.ones(3)})
    Path(cut).write_bytes(Path(good).read_bytes()[:-4])
    assert cli.main(["hash", missing, str(tmp_path), cut, good]) == 1
    out, err = capsys.readouterr()
    assert out == f"{pb.hash({'x': np.ones(3, np.float32)})}  {good}\n"
    told = err.splitlines()
    assert len(told) == 3
    for line, path, words in zip(told, (missing, tmp_path, cut), ("Check the path", "is a folder. Give", "cut off")):
        assert line.startswith("pullback: load: ")
        assert f'"{path}"' in line
        assert words in line


def test_the_command_has_help_and_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in ((["hash", "--help"], 0), (["hash"], 2)):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == status
    assert "SHA-256 of the names, shapes, dtypes and values" in " ".join(capsys.readouterr().out.split())


def test_it_needs_no_kernels() -> None:
    code = "import numpy as np, pullback as pb; print(pb.hash({'x': np.arange(5.0), 'y': pb.tensor([1, 2])}))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(PULLBACK_BACKEND="reference", PULLBACK_DEVICE="cpu"), capture_output=True,
        text=True, check=True,
    )
    assert done.stdout.strip() == written({"x": np.arange(5.0), "y": np.array([1, 2])})


# ---- errors


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": [1, 2**70]}, r'the leaf "a\.1" has type int;'), ({"a": {"b": 1j}}, r'"a\.b" has type complex;'),
        ([len], 'the leaf "0" has type builtin'),
        ({"x": np.array(["a"])}, '"x" has type ndarray and dtype <U1;'), ({"x": np.ma.array([1.0])}, '"x" has type MaskedArray;'),
        (np.complex64(1), 'the argument has type complex64 and dtype complex64;'), ([nn.Linear], 'the leaf "0" has type type;'),
        (nn.Linear, 'the argument has type type;'), ({"s": "\ud800"}, 'the leaf "s" has type str with an unpaired surrogate;'),
    ],
)
def test_other_leaves_are_an_error_that_names_the_path(tree: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"hash: .*{words}.*Convert it, or leave it out") as caught:
        pb.hash(tree)
    assert isinstance(caught.value, pb.PullbackError)


def test_two_leaves_of_one_name_are_an_error() -> None:
    with pytest.raises(pb.PullbackError, match=r'two leaves have the name "a\.b"'):
        pb.hash({"a": {"b": 1}, "a.b": 1})


@pytest.mark.parametrize("key", [(1, 2), None, 1.5, "\ud800"])
def test_a_key_that_no_file_can_hold_is_an_error(key: Any) -> None:
    with pytest.raises(pb.PullbackError, match=r"hash: a key of a dict is .*keys are strings of valid Unicode or integers"):
        pb.hash({"a": {key: 1}})


@needs_kernels
def test_a_captured_function_cannot_hash() -> None:
    with pytest.raises(pb.CaptureError, match=r"pb\.hash\(\).*test_hash\.py"):
        pb.capture(lambda x: (pb.hash(x), x)[1])(pb.ones(2))
