"""Arrays and tensors of any kind in save, models in several files, and states of wrapped networks."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn

NUMBERS = np.array([[1.5, -2.0, 0.0], [3.0, 4.0, 100.0]])


def read_only(x: Any) -> Any:
    x.flags.writeable = False
    return x


def unaligned(x: Any) -> Any:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    memory[1:] = x.reshape(-1).view(np.uint8)
    return memory[1:].view(x.dtype).reshape(x.shape)


def mapped(x: Any, folder: Any) -> Any:
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r")


# What is saved, by what is told of it, and how it is made from an array.
LAYOUTS: dict[str, Any] = {
    "big-endian": lambda x, _: x.astype(x.dtype.newbyteorder(">")),
    "little-endian": lambda x, _: x.astype(x.dtype.newbyteorder("<")),
    "transposed": lambda x, _: np.ascontiguousarray(x.T).T,
    "every second": lambda x, _: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x, _: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda x, _: np.broadcast_to(x, (3, *x.shape)),
    "read-only": lambda x, _: read_only(x.copy()),
    "unaligned": lambda x, _: unaligned(x),
    "matrix": lambda x, _: np.asmatrix(x),
    "0-d": lambda x, _: x[0, 0].reshape(()),
    "scalar": lambda x, _: x[0, 0],
    "empty": lambda x, _: x[:0],
    "memory-mapped": mapped,
    "field of a record": lambda x, _: np.rec.fromarrays([x, x], names=["a", "b"])["b"],
}
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_layout_are_saved(layout: str, dtype: str, tmp_path: Any) -> None:
    given = LAYOUTS[layout](np.abs(NUMBERS).astype(dtype), tmp_path)
    pb.save(tmp_path / "x", {"a": given})
    found = host(pb.load(tmp_path / "x")["a"])
    assert (found.dtype, found.shape) == (np.dtype(dtype), given.shape)
    np.testing.assert_array_equal(found, np.asarray(given))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.ones(2, np.longdouble), "dtype (float128|longdouble) is not supported.*convert first"),
        (np.ones(2, complex), "dtype complex128 is not supported"),
        (np.ones(2, [("a", "f4"), ("b", "f4")]), r"dtype \[\('a', '<f4'\), \('b', '<f4'\)\] is not supported"),
        (np.ones(2, ml_dtypes.bfloat16).view("V2"), r"give array\.view\(ml_dtypes\.bfloat16\)"),
        (np.ones(2, ml_dtypes.float8_e4m3fn), "dtype float8_e4m3fn is not supported"),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), r"mask of a masked array\. Give .*filled"),
        (np.array([None, 1]), "Python objects"),
        (np.array(["text"]), "dtype <U4 is not supported"),
        (np.datetime64("2026-01-01"), r"dtype datetime64\[D\] is not supported"),
    ],
)
def test_arrays_that_are_no_tensors_are_refused_with_their_path(given: Any, words: str, tmp_path: Any) -> None:
    for tree, what in (({"a": [given]}, r'the array at "a\.0"'), (given, "the array")):
        with pytest.raises(pb.DTypeError, match=f"^save: {what} cannot be saved: .*{words}"):
            pb.save(tmp_path / "x", tree)
    assert not os.listdir(tmp_path)


# ---- other libraries


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"])
def test_tensors_of_torch_are_saved(dtype: str, tmp_path: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.tensor(np.abs(NUMBERS)).to(getattr(torch, dtype))
    kinds = {"plain": x, "turned": x.T, "expanded": x[:1].expand(4, 3), "0-d": x[0, 0], "empty": x[:0]}
    if x.is_floating_point():
        leaf = x.clone().requires_grad_()
        kinds |= {"leaf": leaf, "computed": leaf * 2, "parameter": torch.nn.Parameter(x)}
    pb.save(tmp_path / "x", OrderedDict(kinds))
    found = pb.load(tmp_path / "x")
    assert list(found) == list(kinds)
    for name, given in kinds.items():
        assert str(found[name].dtype) == dtype
        np.testing.assert_array_equal(host(found[name]).astype(float), given.detach().double().numpy())


def test_a_state_dict_of_torch_is_saved_and_loaded(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    for state in (theirs.state_dict(), dict(theirs.state_dict(keep_vars=True))):
        pb.save(tmp_path / "x.safetensors", state)
        net.load_state_dict(pb.load(tmp_path / "x.safetensors"))
        for name, value in net.state_dict().items():
            np.testing.assert_array_equal(host(value), state[name].detach().numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "uint8", "bool"])
def test_arrays_of_jax_are_saved(dtype: str, tmp_path: Any) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    x = jax.numpy.asarray(np.abs(NUMBERS)).astype(dtype)
    pb.save(tmp_path / "x", {"a": x, "b": [x.T]})
    found = pb.load(tmp_path / "x")
    assert str(found["a"].dtype) == dtype
    np.testing.assert_array_equal(host(found["a"]), np.asarray(x))
    np.testing.assert_array_equal(host(found["b"][0]), np.asarray(x.T))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda torch: torch.eye(2).to_sparse(), "its library does not export it"),
        (lambda torch: torch.ones(2, dtype=torch.complex64).conj().imag, r"negatives, .* Call \.resolve_neg\(\)"),
        (lambda torch: torch.ones(2, device="meta"), "its library does not export it"),
        (lambda torch: torch.ones(2, dtype=torch.complex64), "complex64 is not supported"),
        (lambda torch: torch.ones(2).to(torch.float8_e4m3fn), "Convert it first"),
    ],
)
def test_tensors_of_torch_that_are_no_arrays_are_refused(make: Any, words: str, tmp_path: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(pb.PullbackError, match=f'^save: the array at "layer.weight" cannot be saved: .*{words}'):
        pb.save(tmp_path / "x", {"layer": {"weight": make(torch)}})
    assert not os.listdir(tmp_path)


def test_what_only_turns_into_an_array_is_refused(tmp_path: Any) -> None:
    class Series:  # as one of pandas, whose index would be lost
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.ones(3)

    with pytest.raises(pb.PullbackError, match=r'"a" is a Series, not an array or tensor\. Save its array: np\.asarray\(x\)'):
        pb.save(tmp_path / "x", {"a": Series()})


# ---- models in several files


def shards(folder: Any, weight_map: Any = None) -> Any:
    """Writes a model in two files with an index, and returns the path of the index."""
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    library.save_file({"b": np.arange(3.0), "a": np.ones((2, 2), np.float32)}, folder / "model-00001-of-00002.safetensors")
    library.save_file({"c": np.array(7)}, folder / "model-00002-of-00002.safetensors")
    if weight_map is None:
        weight_map = dict.fromkeys("ab", "model-00001-of-00002.safetensors") | {"c": "model-00002-of-00002.safetensors"}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": weight_map}, indent=2))
    return path


def test_an_index_loads_all_files_of_a_model(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shards(tmp_path / "model")
    for given in (path, str(path)):
        found = pb.load(given, device="cpu")
        assert list(found) == ["a", "b", "c"]
        assert [x.numpy().tolist() for x in found.values()] == [[[1.0, 1.0], [1.0, 1.0]], [0.0, 1.0, 2.0], 7]
        assert [str(x.dtype) for x in found.values()] == ["float32", "float64", "int64"]
    monkeypatch.chdir(path.parent)
    assert list(pb.load(path.name)) == ["a", "b", "c"]


def test_an_index_may_name_files_in_folders_below(tmp_path: Any) -> None:
    shards(tmp_path / "model" / "parts")
    path = shards(tmp_path / "model", {"c": "parts/model-00002-of-00002.safetensors"})
    assert pb.load(path)["c"].item() == 7


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_cache_of_links_is_loaded(tmp_path: Any) -> None:
    """Caches of downloaded models hold files by their hashes, and folders of links to them."""
    blobs = shards(tmp_path / "blobs").parent
    (tmp_path / "snapshots").mkdir()
    for name in os.listdir(blobs):
        (tmp_path / "snapshots" / name).symlink_to(f"../blobs/{name}")
    assert list(pb.load(tmp_path / "snapshots" / "model.safetensors.index.json")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "file",
    [
        "../model-00002-of-00002.safetensors", "parts/../../x", "/etc/passwd", "\\\\server\\x", "..\\x", "C:\\x", "C:x", "", ".",
        "x\0y", None, 3, ["x"], "parts",
    ],
)
def test_an_index_reads_regular_files_of_its_folder_only(file: Any, tmp_path: Any) -> None:
    shards(tmp_path)
    path = shards(tmp_path / "model", {"c": file})
    (tmp_path / "model" / "parts").mkdir()
    words = "Only files in the folder of the index are read" if file not in (".", "parts") else "is not a regular file"
    with pytest.raises(pb.FileFormatError, match=words):
        pb.load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX's")
def test_an_index_does_not_wait_for_a_pipe(tmp_path: Any) -> None:
    path = shards(tmp_path, {"c": "pipe"})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(pb.FileFormatError, match=r'pipe", which the index ".*" names, is not a regular file'):
        pb.load(path)


@pytest.mark.parametrize(
    ("weight_map", "kind", "words"),
    [
        ({"c": "gone.safetensors"}, FileNotFoundError, r"there is no such file.*gone\.safetensors"),
        ({"c": "model-00001-of-00002.safetensors"}, pb.FileFormatError, r'00001-of-00002\.safetensors" lacks c, so it is not'),
        ({"a": "model-00001-of-00002.safetensors"}, pb.FileFormatError, r'00001-of-00002\.safetensors" has b, which the index'),
        ({"c": "model.safetensors.index.json"}, pb.FileFormatError, "is not a safetensors file"),
        ({"c": "pytorch_model.bin"}, pb.FileFormatError, r"torch\.save, .* write such files"),
        ({}, pb.FileFormatError, "weight_map that is no dict"),
        ([1], pb.FileFormatError, "weight_map that is no dict"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(weight_map: Any, kind: Any, words: str, tmp_path: Any) -> None:
    path = shards(tmp_path, weight_map)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(kind, match=words):
        pb.load(path)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": ', "[" * 100_000, '{"a":' * 100_000, '{"metadata": {"total_size": 3}}'])
def test_json_that_is_no_index_is_no_safetensors_file(text: str, tmp_path: Any) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(pb.FileFormatError, match="is not a safetensors file"):
        pb.load(tmp_path / "x.json")


def test_a_header_whose_length_looks_like_json_is_no_index(tmp_path: Any) -> None:
    header = json.dumps({"__metadata__": {"x": "." * 300}})
    header += " " * ((ord("{") - len(header)) % 256)  # the first byte of the length is that of "{"
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert (tmp_path / "x").read_bytes()[:1] == b"{"
    assert pb.load(tmp_path / "x") == {}


# ---- states of wrapped networks


def net() -> Any:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def renamed(change: Any) -> dict[str, Any]:
    return {change(name): x for name, x in net().state_dict().items()}


WRAPPED: dict[str, tuple[Any, str]] = {
    "DataParallel": (lambda n: f"module.{n}", 'begin with "module.". Strip it: {name.removeprefix("module.")'),
    "compile": (lambda n: f"_orig_mod.{n}", 'begin with "_orig_mod.". Strip it: {name.removeprefix("_orig_mod.")'),
    "both": (lambda n: f"module._orig_mod.{n}", 'begin with "module._orig_mod.". Strip it'),
    "a larger network": (lambda n: f"model.encoder.{n}", 'begin with "model.encoder.". Strip it'),
    "compiled layers": (
        lambda n: n.replace(".", "._orig_mod."),
        'contain "_orig_mod.". Remove it: {name.replace("_orig_mod.", "")',
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
@pytest.mark.parametrize("strict", [True, False])
def test_the_names_of_a_wrapper_are_answered_with_code_that_works(wrapper: str, strict: bool) -> None:
    change, words = WRAPPED[wrapper]
    state, target = renamed(change), net()
    with pytest.raises(pb.PullbackError) as caught:
        target.load_state_dict(state, strict=strict)
    text = str(caught.value)
    assert words in text
    code = text[text.index("{name") :].removesuffix(".")
    assert target.load_state_dict(eval(code, {"state": state})) == ([], [])


def test_a_state_that_lacks_the_name_of_a_wrapper() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = net()

    wrapper, state = Wrapper(), net().state_dict()
    with pytest.raises(pb.PullbackError) as caught:
        wrapper.load_state_dict(state)
    text = str(caught.value)
    assert 'The names lack "module.". Put it before them' in text
    assert wrapper.load_state_dict(eval(text[text.index('{"module."') :].removesuffix("."), {"state": state})) == ([], [])


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_checkpoint_that_holds_the_state_says_where(key: str) -> None:
    state = {key: net().state_dict(), "epoch": 3}
    for strict in (True, False):
        with pytest.raises(pb.PullbackError, match=rf"in the state's entry '{key}': pass state\['{key}'\]"):
            net().load_state_dict(state, strict=strict)
    assert net().load_state_dict(state[key]) == ([], [])


def test_other_names_are_only_listed() -> None:
    state = {"encoder.weight": np.ones(2), "decoder.bias": np.ones(2)}
    with pytest.raises(pb.PullbackError, match="Load it into the same network, or pass strict=False to take what fits"):
        net().load_state_dict(state)
    missing, unexpected = net().load_state_dict(state, strict=False)
    assert (len(missing), unexpected) == (4, ["encoder.weight", "decoder.bias"])
