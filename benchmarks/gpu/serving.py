"""The process of one library: it prepares cases, times them when it is asked, and answers each request with a line of JSON.

turns.py starts one such process per library, and lets them time the same step in turns.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import timing

from device import finite


class Prepared(NamedTuple):
    """A case that is compiled, warm and ready to be timed.

    Attributes:
        call: runs the case once, with the next batch.
        finish: waits until the device has done all work of the case.
        warm: the number of first calls that are not timed, after which every batch has been seen.
        steps: the number of steps, or of launches, in one call.
        facts: figures that are known before the timing.
        after: returns the figures that are known after the timing, for example the loss.
        within: returns the context manager that is entered around calls.
    """

    call: Callable[[], Any]
    finish: Callable[[], Any]
    warm: int = 1
    steps: int = 1
    facts: Mapping[str, Any] = {}
    after: Callable[[], Mapping[str, Any]] = dict
    within: Callable[[], AbstractContextManager[Any]] = nullcontext


class Server:
    """Answers the requests {"prepare": key, "work": ...}, {"time": key, "seconds": s} and {"release": key}.

    Args:
        make: prepares a case.
        threads: the number of cases that are prepared at the same time. With 0 a case is prepared in the main thread.
    """

    def __init__(self, make: Callable[[Mapping[str, Any]], Prepared], threads: int = 0) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._cases: dict[str, Prepared] = {}
        self._counts: dict[str, int] = {}
        self._out, self._lock = os.fdopen(os.dup(1), "w"), threading.Lock()
        os.dup2(2, 1)  # whatever a library prints, also from C, goes to stderr and does not disturb the answers

    def run(self, **facts: Any) -> None:
        """Prints the library's facts, and answers requests until standard input ends."""
        self._answer(facts=facts)
        for line in sys.stdin:
            request = json.loads(line)
            if "prepare" in request and self._pool:
                self._pool.submit(self._guarded, self._prepare, request["prepare"], request)
            else:
                verb = next(verb for verb in ("prepare", "time", "release") if verb in request)
                self._guarded(getattr(self, f"_{verb}"), request[verb], request)

    def _answer(self, **answer: Any) -> None:
        with self._lock:
            self._out.write(json.dumps(finite(answer)) + "\n")
            self._out.flush()

    def _guarded(self, action: Callable[[str, Any], None], key: str, request: Mapping[str, Any]) -> None:
        try:
            action(key, request)
        except Exception as error:
            self._cases.pop(key, None)
            text = f"{type(error).__name__}: {error}"[:1500]
            self._answer(failed=key, error=text, traceback=traceback.format_exc()[-1500:])

    def _prepare(self, key: str, request: Mapping[str, Any]) -> None:
        begin = time.perf_counter()
        prepared = self._make(request["work"])
        with prepared.within():
            for _ in range(prepared.warm):
                prepared.call()
            prepared.finish()
        self._cases[key] = prepared
        self._answer(ready=key, prepared_s=round(time.perf_counter() - begin, 3), **prepared.facts)

    def _time(self, key: str, request: Mapping[str, Any]) -> None:
        prepared = self._cases[key]
        with prepared.within():
            if key not in self._counts:
                self._counts[key] = timing.count_for(prepared.call, prepared.finish, request["seconds"])
            count = self._counts[key]
            us = timing.seconds(prepared.call, prepared.finish, count) * 1e6 / prepared.steps
        self._answer(timed=key, us=us, calls=count)

    def _release(self, key: str, _: Mapping[str, Any]) -> None:
        after = self._cases[key].after()
        del self._cases[key], self._counts[key]
        self._answer(released=key, **after)
