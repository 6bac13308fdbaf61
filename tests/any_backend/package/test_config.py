"""pb.config.reproducible: how it is set, where it holds, and where it is refused."""

from __future__ import annotations

import enum
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.config
from captured_step import needs_kernels
from conftest import environment
from pullback import cli
from pullback.backends import modes

REASON = pb.config.why_not()
needs_everywhere = pytest.mark.skipif(REASON is not None, reason=f'no "everywhere": {REASON}')


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Begins each test in the default mode, and restores the mode after it."""
    before = modes.mode()
    modes.set_mode("machine")
    yield
    modes.set_mode(before)


@pytest.fixture
def everywhere() -> None:
    pb.config.reproducible = "everywhere"


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=environment(**variables), capture_output=True, text=True, check=False)


# ---- the object


def test_the_default_is_machine() -> None:
    assert run("import pullback as pb; print(pb.config.reproducible, pb.config)").stdout == (
        "machine <pb.config: reproducible='machine'>\n"
    )


def test_the_module_and_the_attribute_are_one_object() -> None:
    assert pullback.config is pb.config is importlib.import_module("pullback.config") is importlib.reload(pb.config)


@needs_everywhere
def test_it_is_set_and_shown() -> None:
    pb.config.reproducible = "everywhere"
    assert pb.config.reproducible == "everywhere"
    assert repr(pb.config) == "<pb.config: reproducible='everywhere'>"
    assert pullback.config.why_not() is None
    pb.config.reproducible = "machine"
    assert pb.config.reproducible == "machine"


@pytest.mark.parametrize("word", ["evrywhere", "Everywhere", "", None, True, ["machine"], np.array(["machine", "everywhere"])])
def test_a_word_that_does_not_exist_is_an_error_that_names_those_that_do(word: Any) -> None:
    with pytest.raises(ValueError, match="; use 'machine' or 'everywhere'"):
        pb.config.reproducible = word
    assert pb.config.reproducible == "machine"


@needs_everywhere
def test_a_string_of_another_class_is_kept_as_a_plain_one() -> None:
    pb.config.reproducible = enum.Enum("Modes", {"x": "everywhere"}, type=str).x  # pyright: ignore
    assert type(pb.config.reproducible) is str
    assert repr(pb.config) == "<pb.config: reproducible='everywhere'>"


def test_a_setting_that_does_not_exist_is_an_error_that_names_the_one_that_does() -> None:
    with pytest.raises(AttributeError, match=r"pb\.config\.reproducable does not exist.*pb\.config\.reproducible"):
        pb.config.reproducable = "everywhere"  # pyright: ignore
    assert not hasattr(pb.config, "reproducable")
    with pytest.raises(AttributeError):
        del pb.config.reproducible
    assert [name for name in dir(pb.config) if name[0] != "_"] == ["reproducible", "why_not"]


@needs_everywhere
def test_it_is_of_the_process_and_not_of_a_thread(everywhere: None) -> None:
    seen: list[str] = []
    other = threading.Thread(target=lambda: seen.append(pb.config.reproducible))
    other.start()
    other.join()
    assert seen == ["everywhere"]


@needs_everywhere
def test_every_kernel_module_receives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernels:
        def __init__(self) -> None:
            self.received: list[Any] = []

        def set_everywhere(self, on: bool) -> None:
            self.received.append(on)

        def set_matmul_precision(self, number: int) -> None:
            self.received.append(number)

    cpu, early, late = Kernels(), Kernels(), Kernels()
    monkeypatch.setattr(modes.native, "module", cpu)
    monkeypatch.setattr(modes, "_of_gpu", [early])
    modes.set_mode("everywhere")
    modes._connect(late)  # a GPU's kernels that are loaded after the mode was set
    modes.set_mode("machine")
    assert cpu.received == early.received == [True, False]
    assert late.received == [0, True, False]


# ---- refusals


def refused(words: str) -> None:
    """Asserts that the mode is refused with these words, and that it has not changed."""
    before = modes.rounding()
    with pytest.raises(pb.PullbackError, match=words) as caught:
        pb.config.reproducible = "everywhere"
    assert str(caught.value).startswith('pb.config.reproducible = "everywhere" is not possible here: ')
    assert modes.rounding() == before
    assert str(caught.value).endswith(str(pb.config.why_not()))


@pytest.mark.parametrize(
    ("level", "words"),
    [("x86-64-v2", r"level v2 have no fused multiply-add.*v3 or higher.*\"machine\""), ("aarch64", r"tested.*x86-64.*aarch64")],
)
@needs_everywhere
def test_other_processors_refuse_it(level: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes.native, "simd_level", lambda: level)
    refused(words)


@needs_everywhere
def test_it_is_refused_inside_autocast_to_tf32_and_the_reverse() -> None:
    with pb.amp.autocast("tf32"):
        refused(r"inside autocast\(\"tf32\"\).*order.*Set it outside")
    pb.config.reproducible = "everywhere"
    block = pb.amp.autocast("tf32")
    with pytest.raises(pb.PullbackError, match=r"autocast\(\"tf32\"\).*tensor cores.*\"bfloat16\".*\"machine\""):
        block.__enter__()
    assert modes.rounding() == ("float32", "everywhere")
    for precision in ("bfloat16", "float16", "float32"):
        with pb.amp.autocast(precision):
            assert modes.rounding() == (precision, "everywhere")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PULLBACK_BACKEND": "reference"}, 'device "cpu" has no native kernels (PULLBACK_BACKEND=reference), and NumPy adds'),
        ({"PULLBACK_SIMD": "v2"}, "level v2 have no fused multiply-add"),
    ],
    ids=["reference", "v2"],
)
@needs_everywhere
def test_the_variable_is_refused_in_the_same_words(variables: dict[str, str], words: str) -> None:
    done = run("import pullback", PULLBACK_DEVICE="cpu", PULLBACK_REPRODUCIBLE="everywhere", **variables)
    if "_cpu_v2" in done.stderr:
        pytest.skip("the kernels of level v2 were not built")
    assert done.returncode != 0
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("ImportError: PULLBACK_REPRODUCIBLE is 'everywhere'")]
    assert words in told
    assign = "import pullback as pb\ntry: pb.config.reproducible = 'everywhere'\nexcept pb.PullbackError as error: print(error)"
    done = run(assign, PULLBACK_DEVICE="cpu", PULLBACK_REPRODUCIBLE="machine", **variables)
    assert done.stdout.strip().partition("here: ")[2] == told.partition("here: ")[2]


def test_the_reference_backend_refuses_it() -> None:
    code = "import pullback as pb; pb.config.reproducible = 'machine'; pb.config.reproducible = 'everywhere'"
    done = run(code, PULLBACK_BACKEND="reference", PULLBACK_DEVICE="cpu")
    assert 'PullbackError: pb.config.reproducible = "everywhere" is not possible here: device "cpu"' in done.stderr


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_variable_that_is_no_mode_is_an_error_on_every_backend(backend: str) -> None:
    if backend == "native" and REASON is not None:
        pytest.skip(f"no native kernels: {REASON}")
    done = run("import pullback", PULLBACK_REPRODUCIBLE="always", PULLBACK_BACKEND=backend)
    assert "ImportError: PULLBACK_REPRODUCIBLE is 'always', but only 'machine' and 'everywhere' exist." in done.stderr


@needs_everywhere
def test_the_variable_sets_it() -> None:
    code = "import pullback as pb; print(pb.config.reproducible)"
    assert run(code, PULLBACK_REPRODUCIBLE="everywhere").stdout == "everywhere\n"


def test_training_refuses_a_mode_that_is_not_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes.native, "simd_level", lambda: "x86-64-v2")
    assert cli.main(["train", "digits", "--out", str(tmp_path), "--reproducible", "everywhere"]) == 1
    assert capsys.readouterr().err.startswith('pullback: pb.config.reproducible = "everywhere" is not possible here: ')


# ---- what depends on it


@needs_everywhere
def test_it_cannot_change_inside_a_captured_function() -> None:
    def f(x: Any) -> Any:
        pb.config.reproducible = "everywhere"
        return x + 1

    with pytest.raises(pb.CaptureError, match=r"reproducible.*test_config\.py.*Set it before the call"):
        pb.capture(f)(pb.ones(3))
    assert pb.config.reproducible == "machine"
    f(pb.ones(3))
    assert np.array_equal(pb.capture(f)(pb.ones(3)).numpy(), [2, 2, 2])  # It is set already, so nothing changes.


@needs_everywhere
@needs_kernels
def test_it_cannot_change_while_another_thread_records() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def f(x: Any) -> Any:
        y = x @ x
        inside.set()
        assert go_on.wait(60)
        return y @ x

    captured, x, results = pb.capture(f), pb.ones((4, 4)), list[Any]()
    other = threading.Thread(target=lambda: results.append(captured(x).numpy()))
    other.start()
    assert inside.wait(60)
    try:
        with pytest.raises(pb.PullbackError, match=r"'everywhere' while another thread .* captured function.*before the threads"):
            pb.config.reproducible = "everywhere"
        pb.config.reproducible = "machine"  # nothing changes
    finally:
        go_on.set()
        other.join()
    assert pb.config.reproducible == "machine"
    assert np.array_equal(results[0], captured(x).numpy())
    assert captured.stats().captures == 1
    pb.config.reproducible = "everywhere"


@needs_everywhere
@needs_kernels
def test_a_recording_that_failed_does_not_keep_it_from_changing() -> None:
    def f(x: Any) -> Any:
        raise RuntimeError("in the recording")

    with pytest.raises(RuntimeError):
        pb.capture(f)(pb.ones(3))
    pb.config.reproducible = "everywhere"


FORKS = """
import os, threading
import pullback as pb

inside, go_on = threading.Event(), threading.Event()
recorded = pb.capture(lambda x: (inside.set(), go_on.wait(60), x + 1)[2])
other = threading.Thread(target=recorded, args=(pb.ones(3),))
other.start()
inside.wait(60)
child = os.fork()
if not child:
    pb.config.reproducible = "everywhere"
    os._exit(0)
print(os.waitpid(child, 0)[1])
go_on.set()
other.join()
"""


@needs_everywhere
@needs_kernels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_no_other_thread_that_records() -> None:
    assert run(FORKS, PULLBACK_DEVICE="cpu").stdout == "0\n"


@needs_everywhere
@needs_kernels
@pytest.mark.usefixtures("on_cpu")  # On a GPU the call of a replay returns before the replay ends.
def test_a_replay_has_one_mode_throughout() -> None:
    """One thread replays again and again while another sets the mode as often as it may."""
    x = pb.tensor(np.random.default_rng(0).standard_normal((200, 1, 3000)).astype(np.float32))
    w = pb.tensor(np.random.default_rng(1).standard_normal((3000, 40)).astype(np.float32))
    captured = pb.capture(lambda x: x @ w, steps=200)  # rows, which "machine" may leave to a library
    whole: dict[str, str] = {}
    for mode in ("machine", "everywhere"):
        pb.config.reproducible = mode  # pyright: ignore
        whole[mode] = [pb.hash(captured(x)) for _ in range(2)][1]
    found, refused = set[str](), threading.Event()

    def replay() -> None:
        for _ in range(400):
            with pb.use_device("cpu"):
                found.add(pb.hash(captured(x)))
            if refused.is_set():
                return

    other = threading.Thread(target=replay)
    other.start()
    while other.is_alive() and not refused.is_set():
        try:
            pb.config.reproducible = "everywhere" if pb.config.reproducible == "machine" else "machine"
        except pb.PullbackError:
            refused.set()
    other.join()
    assert refused.is_set()
    assert found <= set(whole.values())


@needs_everywhere
@needs_kernels
def test_a_captured_function_is_recorded_again_for_the_other_mode() -> None:
    f = pb.capture(lambda x: x @ x + 1)
    x = pb.ones((4, 4))
    for mode, captures, replays in (
        ("machine", 1, 0), ("machine", 1, 1), ("everywhere", 2, 1), ("everywhere", 2, 2), ("machine", 2, 3), ("machine", 2, 4),
        ("everywhere", 2, 5),
    ):
        pb.config.reproducible = mode  # pyright: ignore
        f(x)
        assert (f.stats().captures, f.stats().replays) == (captures, replays), mode


@needs_everywhere
def test_a_memo_runs_again_for_the_other_mode_and_for_another_precision() -> None:
    f = pb.memo(lambda x: x @ x)
    x = pb.ones((4, 4))
    f(x)
    pb.config.reproducible = "everywhere"
    f(x), f(x)
    assert (f.stats.misses, f.stats.hits) == (2, 1)
    with pb.amp.autocast("bfloat16"):
        f(x)
    assert f.stats.misses == 3


@needs_everywhere
def test_a_checkpoint_leaves_it_as_it_is(everywhere: None) -> None:
    x = pb.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    modes_seen: list[str] = []

    def f(x: Any) -> Any:
        modes_seen.append(pb.config.reproducible)
        return pb.sum(pb.tanh(x @ x.mT))

    plain, recomputed = pb.grad(f)(x).numpy(), pb.grad(pb.checkpoint(f))(x).numpy()
    assert plain.tobytes() == recomputed.tobytes()
    assert modes_seen == ["everywhere"] * 3
    assert pb.config.reproducible == "everywhere"
