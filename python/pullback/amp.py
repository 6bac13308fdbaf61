"""Training in lower precision: `with pb.amp.autocast("bfloat16"):`, and `pb.amp.LossScaler()` for gradients in float16."""

from __future__ import annotations

from .backends.autocast import autocast as autocast
from .exports import exported as _exported
from .optim.loss_scaler import LossScaler as LossScaler

__all__ = ["LossScaler", "autocast"]
_exported(globals())
