"""The work of one element in each update rule: (additions, multiplications, special ops), measured by running its
functor on the counting scalar. Written by tools/generate.py; a test compares it with the native module."""

from typing import Final

UPDATE_COUNTS: Final[dict[str, tuple[int, int, int]]] = {
    "adam_decay_step": (5, 8, 3),
    "adam_step": (4, 7, 3),
    "adamw_step": (5, 8, 3),
    "lion_step": (4, 7, 0),
    "sgd_decay_step": (2, 3, 0),
    "sgd_momentum_decay_step": (3, 5, 0),
    "sgd_momentum_step": (2, 4, 0),
    "sgd_nesterov_decay_step": (4, 6, 0),
    "sgd_nesterov_step": (3, 5, 0),
    "sgd_step": (1, 2, 0),
}
