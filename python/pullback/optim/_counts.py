"""The work of one element in each update rule: (additions, multiplications, special ops), measured by running its
functor on the counting scalar, and the number of settings of a set that a step writes.

Written by tools/generate.py; a test compares it with the native module.
"""

from typing import Final

UPDATE_COUNTS: Final[dict[str, tuple[int, int, int, int]]] = {
    "adadelta_step": (6, 10, 3, 3),
    "adagrad_step": (4, 4, 2, 3),
    "adam_amsgrad_step": (5, 8, 3, 5),
    "adam_step": (5, 8, 3, 5),
    "adamax_step": (4, 6, 1, 4),
    "adamw_amsgrad_step": (5, 8, 3, 5),
    "adamw_step": (5, 8, 3, 5),
    "add_step": (1, 0, 0, 3),
    "lamb_step": (5, 9, 3, 5),
    "lion_step": (4, 7, 0, 3),
    "nadam_decoupled_step": (6, 9, 3, 7),
    "nadam_step": (6, 9, 3, 7),
    "radam_decoupled_step": (5, 9, 2, 6),
    "radam_step": (5, 9, 2, 6),
    "rmsprop_centered_step": (6, 9, 2, 3),
    "rmsprop_momentum_centered_step": (7, 10, 2, 3),
    "rmsprop_momentum_step": (5, 7, 2, 3),
    "rmsprop_step": (4, 6, 2, 3),
    "schedule_free_adamw_step": (7, 8, 2, 6),
    "schedule_free_step": (5, 5, 0, 6),
    "sgd_momentum_step": (3, 5, 0, 3),
    "sgd_nesterov_step": (4, 6, 0, 3),
    "sgd_step": (2, 3, 0, 3),
}
