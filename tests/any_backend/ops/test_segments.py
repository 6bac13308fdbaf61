"""Segments: their number if it is not passed, and sums of exponentials without overflow."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from conftest import host


@pytest.mark.parametrize("ids", [[0, 2, 0], pb.tensor([0, 2, 0])], ids=["list", "tensor"])
def test_without_a_number_of_segments_there_are_as_many_as_the_largest_id_asks_for(ids: object) -> None:
    data = np.array([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0]])
    np.testing.assert_array_equal(host(pb.segment_sum(data, ids)), [[4, 8], [0, 0], [2, 4]])
    np.testing.assert_array_equal(host(pb.segment_max(data, ids))[[0, 2]], [[3, 5], [2, 4]])


def test_no_rows_have_no_segments() -> None:
    assert pb.segment_sum(np.ones((0, 2)), pb.tensor([], dtype=pb.int64)).shape == (0, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_exponentials_of_a_segment_do_not_overflow(dtype: str) -> None:
    """The data have large and small numbers in one segment, and segments of one element, of infinities and of no element."""
    data = np.array([1000.0, 2.0, 999.0, -1000.0, -1001.0, -np.inf, 3e4, 1001.0, -np.inf, np.inf], dtype)
    ids = np.array([0, 3, 0, 1, 1, 3, 2, 0, 5, 6])
    wanted = np.full(7, -np.inf)
    np.logaddexp.at(wanted, ids, data.astype(np.float64))
    got = pb.segment_logsumexp(data, pb.tensor(ids), 7)
    assert got.dtype == dtype
    np.testing.assert_allclose(host(got), wanted, rtol=1e-6 if dtype == "float32" else 1e-14)
    finite = ids < 5
    shares = np.exp(data.astype(np.float64)[finite] - wanted[ids[finite]])
    got = pb.segment_softmax(data[finite], pb.tensor(ids[finite]), 7)
    np.testing.assert_allclose(host(got), shares, rtol=1e-6 if dtype == "float32" else 1e-13)
