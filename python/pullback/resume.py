"""save_training and load_training, which keep in one file all that a training run needs to go on bit for bit."""

from __future__ import annotations

import os
from typing import Any, Final

from .duck import has
from .errors import PullbackError
from .io import load, save
from .launch import capturing
from .nn.module import Module
from .ops.random import Generator, default

FORMAT: Final = "pullback.training"  # the key by which a file of save_training is recognized


def save_training(path: str | os.PathLike[str], model: Module, opt: Any, loader: Any = None, **values: Any) -> None:
    """Writes the state of a training run to a safetensors file, from which `load_training` continues it bit for bit.

    Args:
        path: the file, which is replaced atomically, as `save` does it.
        model: the network. Its Parameters and Buffers are saved, and the state of each Generator that is an attribute of one of its
            Modules, such as that of `nn.Dropout(generator=…)`.
        opt: its optimizer. Each Parameter that it updates must be in the model.
        loader: the `data.Loader`, whose position is saved, also in the middle of an epoch.
        values: what else the program needs, such as step=100: anything that `save` takes.

    The state of `pb.random`, from which layers draw unless they have a generator, is saved too.
    Raises: PullbackError, OSError, as `save` does; CaptureError in a captured function.
    """
    capturing.refuse("save_training()", "Save between two steps.")
    states = {name: part.state_dict() for name, part in _parts("save_training", model, opt, loader).items()}
    save(path, {FORMAT: 1, "values": values, **states})


def load_training(path: str | os.PathLike[str], model: Module, opt: Any, loader: Any = None) -> dict[str, Any]:
    """Continues from a file of `save_training`: gives model, optimizer, loader and `pb.random` the state that they had.

    Args:
        path: the file.
        model, opt, loader: made as in the program that saved them.

    Returns: the values that were saved with them, by name.
    Raises: PullbackError if the file does not fit to them, FileFormatError, FileNotFoundError. After an error nothing has changed.
    """
    capturing.refuse("load_training()", "Load outside.")
    parts = _parts("load_training", model, opt, loader)
    saved = load(path, device="cpu")
    if not isinstance(saved, dict) or saved.get(FORMAT) != 1:
        raise PullbackError(f'load_training: "{path}" was not written by this version\'s pb.save_training. pb.load may read it.')
    found = saved.keys() - {FORMAT, "values"}
    if wrong := sorted(found ^ parts.keys()):
        told = " and ".join([f"{name}, which is only {'in the file' if name in found else 'given here'}" for name in wrong])
        raise PullbackError(f'load_training: "{path}" does not fit: {told}. Make everything as in the program that saved it.')
    before = [(part, part.state_dict()) for part in parts.values()]
    try:
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    except BaseException:
        for part, state in before:
            part.load_state_dict(state)
        raise
    return saved["values"]


def _parts(caller: str, model: Any, opt: Any, loader: Any) -> dict[str, Any]:
    """Returns everything that has a state, by its name in the file. Raises PullbackError."""
    if not isinstance(model, Module):
        raise PullbackError(
            f"{caller}: the model is a {type(model).__name__}. Give an nn.Module, then its optimizer. For Parameters "
            f"outside of a Module make one that holds them: net = nn.Module(); net.w = w."
        )
    parts = {"model": model, "optimizer": opt, "random": default}
    if loader is not None:
        parts["loader"] = loader
    for what, part in parts.items():
        if not (has(part, "state_dict") and has(part, "load_state_dict")):
            raise PullbackError(f"{caller}: the {what} is a {type(part).__name__}, which has no state_dict and load_state_dict.")
    inside = {id(p) for p in model.parameters()}
    for p in getattr(opt, "parameters", ()):
        if id(p) not in inside:
            raise PullbackError(
                f"{caller}: the optimizer updates {p.label()}, which is not in the model, so its value would not be in the "
                f"file. Hold it in the model too: model.extra = p. Or give the optimizer of this model."
            )
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Generator):
                parts[f"generator {path}.{name}"] = value
    return parts
