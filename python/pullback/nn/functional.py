"""The functions that the layers apply, and the losses."""

from ..exports import exported
from ..ops.elementwise import leaky_relu, relu, sigmoid, silu, tanh
from ..ops.gather import one_hot
from ..ops.linear import linear
from ..ops.dropout import dropout
from ..ops.rows import layer_norm, log_softmax, logsumexp, rms_norm, softmax
from .activations import (
    celu, elu, gelu, glu, hardshrink, hardsigmoid, hardswish, hardtanh, mish, prelu, relu6, selu, softplus, softshrink, softsign,
    tanhshrink, threshold,
)
from .convolutions import conv1d, conv2d, conv_transpose1d, conv_transpose2d
from .attention import rotary, scaled_dot_product_attention
from .bilinear import bilinear
from .channel_norms import batch_norm, group_norm, instance_norm
from .distances import cosine_similarity, normalize, pairwise_distance
from .losses import bce_with_logits, binary_cross_entropy, cross_entropy, huber, kl_div, l1, mse, nll, smooth_l1
from .pools import adaptive_avg_pool2d, avg_pool1d, avg_pool2d, max_pool1d, max_pool2d

__all__ = exported(globals())
