"""The functions behind the layers, and the losses."""

from ..exports import exported
from ..ops.elementwise import leaky_relu, relu, sigmoid, silu, tanh
from ..ops.gather import one_hot
from ..ops.linear import linear
from ..ops.random import dropout
from ..ops.rows import layer_norm, log_softmax, logsumexp, rms_norm, softmax
from .activations import elu, gelu, softplus
from .losses import bce_with_logits, cross_entropy, huber, kl_div, l1, mse, nll

__all__ = exported(globals())
