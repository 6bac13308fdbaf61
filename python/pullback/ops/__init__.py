"""Ops: what each computes, its pullback, its rules for every interpreter and its cost, one family a file.

The families build on each other in this order, and each imports those before it:

    by_name, kinds, declare     what a declaration needs
    conversion, elementwise     same values elsewhere; arithmetic
    shape, gather, movement     views; reading at indices; elements in new memory
    scan, reduce                sums along an axis and over axes
    scatter, index              writing at indices; t[...]
    linalg, linear, rows        products; layers; rows that are normalized
    sort, segment, draws, random
    matrices, factors           made of ops of several families
    accumulate, operators, writing      sums of gradients; methods of Tensor; memory of Parameters

To add an op, write one declaration in its family, and a row in csrc/math if it has a kernel.
"""
