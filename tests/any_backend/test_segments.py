"""Segments: how many there are where nobody says it."""

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
