"""Process-wide options of Ascend's compiler and libraries, checked and stored here.

The host NPU compiles nothing, so most options only return the value that was set.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

from .. import _C
from ..is_number import is_number
from ._lazy import is_initialized

__all__ = [
    "aclnn",
    "config",
    "conv",
    "finalize_dump",
    "get_mm_bmm_format_nd",
    "init_dump",
    "is_jit_compile_false",
    "matmul",
    "set_aoe",
    "set_compile_mode",
    "set_dump",
    "set_mm_bmm_format_nd",
    "set_option",
]

_SWITCH = ("enable", "disable")
# Every option by name, with its allowed values if they are restricted.
_ALLOWED: dict[str, tuple[str, ...] | None] = {
    "ACL_PRECISION_MODE": ("allow_fp32_to_fp16", "must_keep_origin_dtype"),
    "ACL_OP_SELECT_IMPL_MODE": ("high_performance", "high_precision"),
    "ACL_AICORE_NUM": tuple(str(n) for n in range(1, 33)),
    "ACL_OPTYPELIST_FOR_IMPLMODE": None,
    "ACL_OP_DEBUG_LEVEL": tuple("01234"),
    "ACL_DEBUG_DIR": None,
    "ACL_OP_COMPILER_CACHE_MODE": ("disable", "enable", "force"),
    "ACL_OP_COMPILER_CACHE_DIR": None,
    "ACL_OP_DEBUG_OPTION": None,
    "autotune": _SWITCH,
    "autotunegraphdumppath": None,
    "bmmv2_enable": None,
    "mdldumpswitch": _SWITCH,
    "mdldumpconfigpath": None,
    "jitCompile": _SWITCH,
    "jitCompileInit": None,
    "NPU_FUZZY_COMPILE_BLACKLIST": None,
    "FORCE_ACLNN_OP_LIST": None,
    "OP_HOOK_ENABLE": None,
    "MM_BMM_ND_ENABLE": _SWITCH,
    "ALLOW_INTERNAL_FORMAT": _SWITCH,
    "STRONG_CONSISTENCY": None,
    "TORCH_NPU_USE_COMPATIBLE_IMPL": None,
    "ALLOW_CONV_HF32": _SWITCH,
    "ALLOW_MATMUL_HF32": _SWITCH,
    "CUBE_MATH_TYPE": None,
}
_DEPRECATED = ("ACL_OP_SELECT_IMPL_MODE", "ACL_OPTYPELIST_FOR_IMPLMODE")
_values: dict[str, str] = {"ALLOW_CONV_HF32": "enable", "ALLOW_MATMUL_HF32": "disable"}
_mm_bmm_nd = True


def set_option(option: dict[str, Any]) -> None:
    """Set options by name; values become str, also in the caller's dict.

    Args:
        option: such as ``{"jitCompile": "disable"}``.

    Raises:
        TypeError: it is not a dict.
        ValueError: the option does not allow the value.
        RuntimeError: there is no option of that name.
    """
    global _mm_bmm_nd
    if not isinstance(option, dict):
        raise TypeError(f"npu option must be a dict, got {type(option).__name__}.")
    for name, value in option.items():
        option[name] = text = str(value)
        if name not in _ALLOWED:
            raise RuntimeError(
                f"invalid npu option name: {name}; expected one of {', '.join(_ALLOWED)}"
            )
        allowed = _ALLOWED[name]
        if allowed is not None and text not in allowed:
            raise ValueError(f"value of {name} should be in {list(allowed)} but got {text}")
    for name, text in option.items():
        if name in _DEPRECATED:
            warnings.warn(f"npu option {name} is deprecated", DeprecationWarning, stacklevel=2)
        _values[name] = text
        if name == "MM_BMM_ND_ENABLE":
            _mm_bmm_nd = text == "enable"
    if {"mdldumpswitch", "mdldumpconfigpath"} & set(option):
        _apply_dump()


def get_option(name: str) -> str | None:
    """Return an option's value; None if it was never set."""
    return _values.get(name)


def _switch(on: Any) -> str:
    return "enable" if on else "disable"


class _Config:
    """``torch.npu.config``: the write-only switch ``allow_internal_format``.

    While it is on, ``npu_format_cast`` stores private formats as labels; the layout is unchanged.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "allow_internal_format":
            set_option({"ALLOW_INTERNAL_FORMAT": _switch(value)})


class _HF32:
    """A namespace with the switch ``allow_hf32``.

    The host NPU computes float32 matmuls in float32 regardless: HF32 permits lower precision but
    does not require it.
    """

    def __init__(self, option: str) -> None:
        object.__setattr__(self, "_option", option)

    def __getattr__(self, name: str) -> Any:
        return _values[self._option] == "enable" if name == "allow_hf32" else None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "allow_hf32":
            if not isinstance(value, bool):
                raise TypeError(f"allow_hf32: expected a bool, got {type(value).__name__}")
            set_option({self._option: _switch(value)})


class _Matmul(_HF32):
    """``torch.npu.matmul``: ``allow_hf32`` and ``cube_math_type`` (0 to 4)."""

    def __getattr__(self, name: str) -> Any:
        if name == "cube_math_type":
            return int(_values.get("CUBE_MATH_TYPE", "0"))
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "cube_math_type":
            return super().__setattr__(name, value)
        number = getattr(value, "value", value)
        if not is_number(number, int) or not 0 <= number <= 4:
            raise TypeError(f"cube_math_type: expected one of 0 to 4, got {value!r}")
        set_option({"CUBE_MATH_TYPE": number})


class _Aclnn(_HF32):
    """``torch.npu.aclnn``: the switch of ``conv``, and ``version()``."""

    @staticmethod
    def version() -> None:
        """Return None with a warning: the host NPU has no aclnn library."""
        warnings.warn("torch.npu.aclnn.version isn't implemented", stacklevel=2)


config = _Config()
matmul = _Matmul("ALLOW_MATMUL_HF32")
conv = _HF32("ALLOW_CONV_HF32")
aclnn = _Aclnn("ALLOW_CONV_HF32")


def set_compile_mode(jit_compile: bool = False) -> None:
    """Choose prebuilt kernels (False), the host NPU's only ones, or run-time compilation."""
    if is_initialized():
        _C.synchronize(_C.current_device())
    set_option({"jitCompile": _switch(jit_compile)})


def is_jit_compile_false() -> bool:
    """Return whether prebuilt kernels are chosen."""
    return _values.get("jitCompile", "disable") == "disable"


def set_mm_bmm_format_nd(is_nd: bool = True) -> None:
    """Choose plain layouts (True) for matmuls; the host NPU has no others."""
    global _mm_bmm_nd
    _mm_bmm_nd = bool(is_nd)


def get_mm_bmm_format_nd() -> bool:
    """Return whether plain layouts are chosen."""
    return _mm_bmm_nd


def set_aoe(dump_path: str) -> None:
    """Set the folder for graphs to tune offline and create it; the host NPU writes none.

    Raises:
        TypeError: the path is not a str.
        OSError: the folder cannot be created.
    """
    if not isinstance(dump_path, str):
        raise TypeError(f"dump_path: expected a str, got {type(dump_path).__name__}")
    os.makedirs(dump_path, mode=0o750, exist_ok=True)
    set_option({"autotune": "enable", "autotunegraphdumppath": dump_path})


# --- dumps


def init_dump() -> None:
    """Allow dumps; set_dump() configures and starts them."""
    set_option({"mdldumpswitch": "enable"})


def set_dump(cfg_file: str) -> None:
    """Write inputs and outputs of operators to files, as configured by a JSON file.

    ``{"dump": {"dump_path": folder, "dump_mode": "all", "dump_list": ["NPURmsNorm"]}}``: the mode
    is ``input``, ``output`` (default) or ``all``; an empty list stands for all. Operators that run
    eagerly write ``<folder>/<operator>.<call>.<input|output>.<i>.npy``, bfloat16 as uint16.

    Raises:
        AssertionError: there is no such file.
        ValueError: it is not of this form.
    """
    path = os.path.realpath(cfg_file)
    assert os.path.exists(path), f"cfg_file {cfg_file} path does not exists."
    _dump_config(path)
    set_option({"mdldumpconfigpath": path})


def finalize_dump() -> None:
    """End dumps."""
    set_option({"mdldumpswitch": "disable"})


def _dump_config(path: str) -> tuple[str, bool, bool, list[str]]:
    with open(path) as file:
        try:
            dump = json.load(file)["dump"]
            folder, mode = dump["dump_path"], dump.get("dump_mode", "output")
            ops = [op if isinstance(op, str) else op["layer"] for op in dump.get("dump_list", [])]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f'{path}: expected {{"dump": {{"dump_path": ..., "dump_mode": ..., "dump_list": '
                f"[...]}}}}, got something else ({error})"
            ) from error
    if mode not in ("input", "output", "all") or not isinstance(folder, str):
        raise ValueError(f"{path}: expected dump_mode input, output or all, got {mode!r}")
    return folder, mode != "output", mode != "input", ops


def _apply_dump() -> None:
    path = _values.get("mdldumpconfigpath")
    if _values.get("mdldumpswitch") == "enable" and path is not None:
        _C.start_dump(*_dump_config(path))
    else:
        _C.stop_dump()
