"""1,797 real handwritten digits, in the package: enough to train on in seconds, and nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..tensors.creation import asarray
from ..tensors.tensor import Tensor

FOLD = 5  # every fifth image of a class is for testing


@dataclass(frozen=True)
class Digits:
    """Images (n, 8, 8) of float32 in [0, 1] (0 is paper, 1 is ink) and labels (n,) of int64 from 0 to 9."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    def __repr__(self) -> str:
        return f"Digits({len(self.y_train)} images of 8 x 8 to train on, {len(self.y_test)} to test on)"


def digits(device: str | None = None) -> Digits:
    """The UCI digits of Alpaydin & Kaynak (CC BY 4.0), split 80 to 20.

    The split is fixed and stratified: of each class, in the order of the source, the 5th, 10th, 15th… image is for testing,
    all others for training. That makes 1,442 and 355.
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as archive:
        images, labels = archive["images"], archive["labels"]
    test = np.zeros(len(labels), bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[FOLD - 1 :: FOLD]] = True
    x, y = images.astype(np.float32) / 16, labels.astype(np.int64)
    return Digits(*[asarray(part, device=device) for part in (x[~test], y[~test], x[test], y[test])])
