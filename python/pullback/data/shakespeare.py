"""The package contains 1.1 MB of Shakespeare's plays, on which small language models are commonly compared."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..tensors.creation import asarray
from ..tensors.tensor import Tensor

TRAINING = 0.9  # the share of the text that is for training; the rest, at its end, is for validation


@dataclass(frozen=True)
class Text:
    """A text as the numbers of its characters: int32 tensors of shape (n,), and the characters in the order of their numbers."""

    train: Tensor
    validation: Tensor
    characters: str

    def __repr__(self) -> str:
        counts = f"{self.train.size:,} characters for training, {self.validation.size:,} for validation"
        return f"Text({counts}, of {len(self.characters)} kinds)"

    def decode(self, numbers: Tensor) -> str:
        """Returns the characters with these numbers, of shape (n,)."""
        return "".join([self.characters[i] for i in numbers.tolist()])


def shakespeare(device: str | None = None) -> Text:
    """Returns "Tiny Shakespeare" (public domain): 1,115,394 characters of 65 kinds, of which the first 90 % are for training.

    Source: https://github.com/karpathy/char-rnn.
    """
    compressed = Path(__file__).with_name("shakespeare.txt.gz").read_bytes()
    codes = np.frombuffer(gzip.decompress(compressed), np.uint8)
    kinds, numbers = np.unique(codes, return_inverse=True)
    split = int(len(numbers) * TRAINING)
    train, validation = [asarray(part.astype(np.int32), device=device) for part in (numbers[:split], numbers[split:])]
    return Text(train, validation, kinds.tobytes().decode("ascii"))
