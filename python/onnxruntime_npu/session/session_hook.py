"""Session features of ``NPUExecutionProvider`` that a plugin provider cannot implement.

onnxruntime's Python class creates its session in one method, ``_create_inference_session``; this
module wraps it, only for sessions that may use the NPU, to

- load models whose ``npu::`` nodes carry no function body: onnxruntime resolves a model before it
  knows the provider, so the provider's schemas must be registered first; done only when needed,
  and then without the inputs that an exporter has written as empty constants: they are absent, but
  would affect the types of a node's results;
- preserve errors: after a RuntimeError from the provider onnxruntime would continue with the CPU;
- record the placement of nodes, for :func:`onnxruntime_npu.assignment`;
- plan no reuse of memory within a run: onnxruntime's plan frees a value of the host too early if a
  node of the CPU hands on the memory of a node of the NPU, such as a Squeeze that of a Shape
  (https://github.com/microsoft/onnxruntime/pull/32466). Without a plan it allocates each value and
  frees it after its last reader, so a run's peak of memory stays what it was;
- leave If, Loop and Scan to the CPU where onnxruntime's own threads call kernels (ORT_PARALLEL):
  on the NPU, onnxruntime would give a body the stream of an earlier run, which may be gone;
- fuse no nodes where the session shall store its graph (``optimized_model_filepath``), which
  onnxruntime refuses for fused nodes;
- read a model in onnxruntime's own format by way of ONNX (:mod:`.ort_format`);
- keep small constants inside a compiled model whose weights are in a file of their own
  (:mod:`.compiled_model`);
- use weights that ``SessionOptions.add_initializer`` is given (:mod:`.given_initializers`);
- tell the provider which values the run of a session with graphs has bound
  (:mod:`.bound_values`);
- tell the provider where the environment's library of MPI is, if it has one (``mpich``);
- pass the submitting thread's current stream to a run that onnxruntime starts on one of its own
  threads (``run_async``).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onnxruntime import ExecutionMode, InferenceSession, RunOptions
from onnxruntime.capi import onnxruntime_pybind11_state as C

from .. import _C
from . import bound_values, compiled_model, given_initializers, ort_format, provider_library
from .changed_model import beside, read_instead, read_model
from .option_entries import run_entry, session_entry
from .provider_library import get_ep_name, get_library_path

_RECORD_KEY = "session.record_ep_graph_assignment_info"
_SCHEMAS_KEY = "npu.schemas_registered"
_UNKNOWN_OP = re.compile(r"\bnpu:(\w+)\(-?\d+\) is not a registered function/op")
_NO_GRAPH = "cannot use the graph capture feature"
_NO_CPU = "fallback to CPU EP has been explicitly disabled"
_NO_KERNEL = re.compile(r"Provider type for (\S+) node with name '(.*)' is not set")
_NO_BODY = re.compile(r"npu:(\w+) has no CPU form in this model.*")
DECISIONS = "_npu_decisions"
_CALLER_KEY = "npu.caller_stream"
_NO_MEMORY_PLAN_KEY = "npu.no_memory_plan"
_PARALLEL_KEY = "npu.parallel"
_NO_FUSION_KEY = "npu.no_fusion"
_MPI_LIBRARY_KEY = "npu.mpi_library"
_MPI_LIBRARY = Path(sys.prefix) / "lib" / "libmpi_abi.so.1"  # where the package mpich installs it


def install() -> None:
    """Wraps onnxruntime's session creation, once."""
    original = getattr(InferenceSession, "_create_inference_session", None)
    if original is None:
        warnings.warn(
            "this onnxruntime makes its sessions in another way than 1.31: models with bare npu:: "
            "nodes need SessionOptions.register_custom_ops_library, and assignment() has no record",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    if getattr(original, "_npu_hook", False):
        return

    @functools.wraps(original)
    def create(
        self: InferenceSession, providers: Any, provider_options: Any, *args: Any, **kwargs: Any
    ) -> None:
        make = functools.partial(original, self, providers, provider_options, *args, **kwargs)
        if providers and not _is_named(providers):
            make()
            return
        if isinstance(providers, str):  # onnxruntime would read its letters as names
            raise _no_fallback(ValueError("'providers' should not be a string."), providers)
        try:
            with _in_onnx(self), _with_given_weights(self, providers):
                _create(self, make, _device_id(providers or [], provider_options or []))
        except (ValueError, RuntimeError) as error:
            if not providers:
                raise
            raise _no_fallback(error, providers) from None

    create._npu_hook = True  # type: ignore[attr-defined]
    InferenceSession._create_inference_session = create  # type: ignore[method-assign]
    InferenceSession.run_async = _ordered(InferenceSession.run_async)  # type: ignore[method-assign]
    bound_values.install()
    given_initializers.install()


def _ordered(run_async: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap it so that runs are ordered after the submitting thread's current stream."""

    @functools.wraps(run_async)
    def run(
        self: InferenceSession,
        output_names: Any,
        input_feed: Any,
        callback: Any,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> Any:
        if getattr(self, DECISIONS, None) is None:
            return run_async(self, output_names, input_feed, callback, user_data, run_options)
        options = RunOptions() if run_options is None else run_options
        if bound_values.has_graphs(self) and run_entry(options, "gpu_graph_id") != "-1":
            raise C.InvalidArgument(
                "[run_async] expected a session without enable_npu_graph, or the run option "
                "gpu_graph_id -1, got values in host memory, which a graph does not read; bind "
                "values in NPU memory and call run_with_iobinding"
            )
        options.add_run_config_entry(_CALLER_KEY, _C.caller_stream(_device_of(self)))

        def done(*results: Any) -> None:
            callback(*results)  # onnxruntime reads the options until now, without a reference
            done.options = None  # type: ignore[attr-defined]

        done.options = options  # type: ignore[attr-defined]
        return run_async(self, output_names, input_feed, done, user_data, options)

    return run


def _device_of(session: InferenceSession) -> int:
    return int(session.get_provider_options().get(get_ep_name(), {}).get("device_id", 0))


def _name(provider: Any) -> Any:
    return provider[0] if isinstance(provider, (tuple, list)) and provider else provider


def _is_named(providers: Any) -> bool:
    """Return whether the caller asks for the NPU, in a form that onnxruntime accepts or not."""
    if isinstance(providers, str):
        return providers == get_ep_name()
    return get_ep_name() in [_name(p) for p in providers]


def _no_fallback(error: Exception, providers: Any) -> Exception:
    """Return the same failure, of a type that does not make onnxruntime fall back to the CPU."""
    if isinstance(error, ValueError):
        return C.InvalidArgument(
            f"{error} Expected a list of names and of (name, options) tuples, such as "
            f"providers=[({get_ep_name()!r}, {{'device_id': 0}})], got providers={providers!r}"
        )
    return C.Fail(str(error))


def _device_id(providers: Any, provider_options: Any) -> Any:
    """Return the device id that the caller passed, in either of onnxruntime's two ways."""
    pairs: Any = itertools.zip_longest(providers, provider_options, fillvalue={})
    for provider, options in pairs:
        if _name(provider) == get_ep_name():
            given = [options, *provider[1:]] if isinstance(provider, tuple) else [options]
            ids = [o["device_id"] for o in given if isinstance(o, dict) and "device_id" in o]
            return ids[0] if ids else None
    return None


@contextlib.contextmanager
def _in_onnx(session: Any) -> Iterator[None]:
    """Let a session read its model in ONNX if that is in onnxruntime's own format."""
    path, content = session._model_path, session._model_bytes
    options = session._sess_options or C.get_default_session_options()
    if session_entry(options, ort_format.STORING_KEY) or not ort_format.is_ort_format(
        path, content
    ):
        yield
        return
    session._sess_options = options
    model = ort_format.as_onnx(path, content, options.log_severity_level)
    named = session_entry(options, ort_format.LOADING_KEY)
    with read_instead(session, model, {ort_format.LOADING_KEY: "ONNX"} if named else {}):
        yield


def _with_given_weights(session: Any, providers: Any) -> contextlib.AbstractContextManager[None]:
    options = session._sess_options
    if options is None or not (providers or options.has_providers()):  # it has the CPU only
        return contextlib.nullcontext()
    return given_initializers.read_as_weights(session)


def _create(session: Any, make: Callable[[], None], device_id: Any) -> None:
    if session._sess_options is None:
        session._sess_options = C.get_default_session_options()
    options = session._sess_options
    _set_entry(options, _RECORD_KEY)
    _set_entry(options, _NO_MEMORY_PLAN_KEY)
    parallel = options.execution_mode == ExecutionMode.ORT_PARALLEL
    if parallel or session_entry(options, _PARALLEL_KEY):  # of an earlier session
        options.add_session_config_entry(_PARALLEL_KEY, str(int(parallel)))
    if options.optimized_model_filepath:
        _set_entry(options, _NO_FUSION_KEY)
    if _MPI_LIBRARY.exists():
        _set_entry(options, _MPI_LIBRARY_KEY, str(_MPI_LIBRARY))

    path = session._model_path
    written = compiled_model.to_be_written(functools.partial(session_entry, options), path)
    provider_library.begin_assignment_capture()
    failure: Exception | None = None
    given, options.enable_mem_reuse = options.enable_mem_reuse, False
    try:
        try:
            _make_bare(session, make) if session_entry(options, _SCHEMAS_KEY) else make()
        except Exception as error:
            if not _UNKNOWN_OP.search(str(error)) or session_entry(options, _SCHEMAS_KEY):
                raise
            options.register_custom_ops_library(get_library_path())
            options.add_session_config_entry(_SCHEMAS_KEY, "1")
            _make_bare(session, make)
    except Exception as error:
        failure = error
    finally:
        options.enable_mem_reuse = given  # the caller may use the options for other sessions
    decisions = provider_library.end_assignment_capture()
    if failure is not None:
        raise _readable(failure, decisions or [], device_id) from None
    setattr(session, DECISIONS, decisions)
    if written is not None and written.exists():  # no EPContext node, no file
        compiled_model.keep_small_constants(written)


def _make_bare(session: Any, make: Callable[[], None]) -> None:
    """Make the session of a model that may have nodes without a body."""
    changed = _without_empty_inputs(session._model_path, session._model_bytes)
    if changed is None:
        make()
        return
    with read_instead(session, changed, beside(session._model_path)):
        make()


def _without_empty_inputs(path: str | None, data: bytes | None) -> bytes | None:
    """Return the model without them, None if it has none or is no ONNX model."""
    from ..opdef.empty_inputs import drop_empty_inputs

    model = read_model(path, data)
    if model is None:
        return None
    return model.SerializeToString() if drop_empty_inputs(model) else None


def _set_entry(options: Any, key: str, value: str = "1") -> None:
    if not session_entry(options, key):  # onnxruntime warns when an entry is set again
        options.add_session_config_entry(key, value)


def _readable(error: Exception, decisions: list[dict[str, Any]], device_id: Any) -> Exception:
    """Return the same failure as one specific line, of a type that does not make onnxruntime fall
    back to the CPU.
    """
    text = str(error)
    if isinstance(error, UnicodeDecodeError):  # onnxruntime's own message quotes bytes of the model
        text = error.object.decode(errors="backslashreplace")
    if unknown := _UNKNOWN_OP.search(text):
        return C.Fail(
            f"[{unknown[1]}] expected an operator of domain 'npu', version 1, got an unknown one; "
            "`onnxruntime-npu ops` lists the known ones"
        )
    if no_body := _NO_BODY.search(text):
        reasons = [
            f"'{d['node']}': {d['reason']}"
            for d in decisions
            if d["op_type"] == no_body[1] and not d["claimed"]
        ]
        return C.NotImplemented("; ".join([no_body[0], *reasons]))
    if _NO_CPU in text:
        return C.Fail(_why_cpu(text, decisions))
    if no_kernel := _NO_KERNEL.search(text):
        left = [_reason(d) for d in decisions if no_kernel.groups() == (d["op_type"], d["node"])]
        reason = left[0] if left else f"{no_kernel[1]} '{no_kernel[2]}'"
        return C.NotImplemented(
            f"{get_ep_name()}: expected a node that the NPU or the CPU implements, got {reason}; "
            "the CPU does not implement it either"
        )
    if _NO_GRAPH in text:
        return C.Fail(_why_no_graph(decisions))
    ours = get_ep_name() in text or "ORT_NPU_" in text  # the provider, or the runtime below it
    if isinstance(error, (ValueError, RuntimeError)) and ours:
        if f"Unknown Provider Type: {get_ep_name()}" in text:
            count = sum(d.ep_name == get_ep_name() for d in C.get_ep_devices())
            text = (
                f"{get_ep_name()}: provider option 'device_id' expected 0 to {count - 1}, "
                f"got {device_id}"
            )
        return C.Fail(text.rsplit(" : ", 1)[-1].strip())
    if isinstance(error, UnicodeDecodeError):
        return C.Fail(text)
    return error


def _reason(decision: dict[str, Any]) -> str:
    return f"{decision['op_type']} '{decision['node']}': {decision['reason']}"


def _why_cpu(text: str, decisions: list[dict[str, Any]]) -> str:
    """Return onnxruntime's error about nodes on the CPU, with their names and the reasons."""
    error = text.rsplit(" : ", 1)[-1].strip()
    left = [_reason(d) for d in decisions if not d["implemented"]]
    if not left:
        return error
    shown = "; ".join(left[:5])
    more = f"; and {len(left) - 5} more" if len(left) > 5 else ""
    return f"{error} {get_ep_name()} left {len(left)} nodes to the CPU: {shown}{more}"


def _why_no_graph(decisions: list[dict[str, Any]]) -> str:
    """Describe the nodes that prevent onnxruntime from capturing a session's runs."""
    left = [
        f"{d['op_type']} '{d['node']}' runs on the CPU: {d['reason']}"
        for d in decisions
        if not d["implemented"]
    ]
    left += [
        f"{d['op_type']} '{d['node']}' reads '{d['frozen_input']}' on the host"
        for d in decisions
        if d["frozen_input"]
    ]
    found = "; ".join(left[:5]) or "a node of the NPU that reads the result of shape arithmetic"
    return (
        f"{get_ep_name()}: enable_npu_graph expected every node that computes on the NPU, without "
        f"copies between it and the host, got {found}"
    )
