"""Shared by the tests of errors: the message of a refused call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb


def refusal(call: Callable[[], Any]) -> str:
    """Returns the message of the call's error, which is of pullback or a TypeError."""
    with pytest.raises((pb.PullbackError, TypeError)) as caught:
        call()
    return str(caught.value)
