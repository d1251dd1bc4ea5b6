"""The options of ``NPUGraph.super_kernel_optimize``: their names and types."""

from __future__ import annotations

from typing import Any

# A type; a list means a list of that type, a dict means nested options.
_OPTIMIZE: dict[str, Any] = {
    "preload_code": int,
    "split_mode": int,
    "stream_fusion": int,
    "constant_codegen": int,
    "auto_op_parallel": int,
    "early_start": int,
    "opt_extend": str,
    "dcci_before_kernel_start": [str],
    "dcci_after_kernel_end": [str],
    "dcci_disable_on_kernel": [str],
    "ubuf_lock_ignore_kernel": [str],
    "aggressive_opt_strategies": {
        "event_breaker_bypass": int,
        "value_breaker_bypass": int,
        "task_breaker_bypass": int,
    },
}
_DEBUG: dict[str, Any] = {
    "debug_sync_all": int,
    "debug_op_exec_trace": int,
    "debug_cross_core_sync_check": int,
    "debug_extend": str,
    "debug_per_op_max_core_num": int,
}
_KNOWN = {"optimize_options": _OPTIMIZE, "debug_options": _DEBUG}


def check(name: str, options: Any) -> None:
    """Check ``optimize_options`` or ``debug_options``, which may be None.

    Raises:
        RuntimeError: not a dict, an unknown option, or a value of another type.
    """
    if options is None:
        return
    if not isinstance(options, dict):
        raise RuntimeError(f"{name} param must be dict or None, got {type(options).__name__}")
    for key, value in options.items():
        if key not in _KNOWN[name]:
            raise RuntimeError(
                f"Invalid {name} param key: {key!r}; expected one of {', '.join(_KNOWN[name])}"
            )
        _check_value(f"{name} param[{key!r}]", value, _KNOWN[name][key])


def _check_value(what: str, value: Any, expected: Any) -> None:
    kind: Any = expected if isinstance(expected, type) else type(expected)
    if not isinstance(value, kind):
        raise RuntimeError(f"{what} must be {kind.__name__}, got {type(value).__name__}")
    if isinstance(expected, list):
        for i, element in enumerate(value):
            _check_value(f"{what}[{i}]", element, expected[0])
    if isinstance(expected, dict):
        for key, element in value.items():
            if key not in expected:
                raise RuntimeError(f"Invalid sub_key {key!r} in {what}; expected {list(expected)}")
            _check_value(f"{what}[{key!r}]", element, expected[key])
