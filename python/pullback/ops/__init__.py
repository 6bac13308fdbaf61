"""Ops: each declaration gives an op's formula, pullback, batching and tangent rules, and cost. Each file holds one family.

The families build on each other in this order; each imports only families listed before it:

    by_name, kinds, declare     the tools of declarations
    conversion, elementwise     the same values in another dtype or place; arithmetic
    shape, gather, movement     views; reading at indices; moving elements into new memory
    cumulative, reduce          sums along an axis and over axes
    scatter, index              writing at indices; t[...]
    linalg, linear, conv, rows, variance, losses  matrix products; linear layers; convolutions; softmax and norms of rows; losses
    recurrent, linear_recurrence  all steps of a recurrent layer; y_t = a_t y_{t-1} + b_t
    attention                   scaled dot-product attention
    channels, pools             norms of channels; maxima and means of windows
    sort, segment, draws, random, dropout
    lapack, solves, spectral, determinants, qr, least_squares  factorisations, linear systems, singular values
    matrices, factors           functions composed of ops of several families
    accumulate, operators, writing      sums of gradients; methods of Tensor; updates of Parameters

To add an op, write one declaration in its family, and add a row in csrc/math if the op has a kernel.
"""
