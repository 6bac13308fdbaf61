"""What is made after the last recording of captured functions began discards none. What a recording may have seen does."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np

import pullback as pb
from captured_step import needs_kernels
from pullback import nn, optim

pytestmark = needs_kernels


def test_what_is_made_after_the_last_recording_discards_none() -> None:
    f, x = pb.capture(lambda x: x * 2), pb.ones(2)
    f(x)
    for _ in range(3):
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        net[0] = nn.Linear(2, 2)
        net[0].weight.trainable = False
        optim.Adam(net[2].parameters())  # moves the Parameters
        net.to("float64")
        copy.deepcopy(net)[0].weight = pb.Parameter(np.ones((2, 2)))
        f(x)
    assert f.stats().captures == 1


def test_what_a_recording_may_have_seen_is_recorded_again() -> None:
    layer, seen = nn.Linear(2, 2), []

    def function(x: Any) -> Any:
        if not seen:
            seen.append(pb.Parameter(pb.ones(2)))
        return layer(x) * seen[0]

    f, x = pb.capture(function), pb.ones(2)
    f(x)
    f(x)
    later = nn.Linear(2, 2)  # is too young to be in the recording, until the next one begins
    layer.weight = pb.Parameter(np.zeros((2, 2), np.float32))
    assert f(x).numpy().tolist() == layer.bias.numpy().tolist()
    later.weight = pb.Parameter(np.zeros((2, 2), np.float32))
    f(x)
    seen[0].trainable = False  # was made by a recorded run
    f(x)
    assert f.stats().captures == 4


def test_what_is_made_while_another_thread_records_counts_as_seen() -> None:
    begun, made = threading.Event(), threading.Event()

    def function(x: Any) -> Any:
        begun.set()
        made.wait(20)
        return layers[0](x)

    layers: list[nn.Module] = []
    f, x = pb.capture(function), pb.ones(2)
    recorder = threading.Thread(target=f, args=(x,))
    recorder.start()
    begun.wait(20)
    layers.append(nn.Linear(2, 2))
    made.set()
    recorder.join()
    layers[0].weight = pb.Parameter(np.zeros((2, 2), np.float32))
    assert f(x).numpy().tolist() == layers[0].bias.numpy().tolist()


def test_a_new_network_around_a_seen_layer_moves_what_a_recording_has_seen() -> None:
    layer, x = nn.Linear(3, 2), pb.ones((1, 3))
    f = pb.capture(lambda x: layer(x))
    f(x)
    around = nn.Sequential(layer)
    around.to("float64")
    assert f(x).dtype == layer(x).dtype == pb.float64
    around.to("float32")
    layer.weight.assign(pb.ones((2, 3)))
    layer.bias.assign(pb.zeros(2))
    assert f(x).numpy().tolist() == [[3.0, 3.0]]
