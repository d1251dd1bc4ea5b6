"""``info`` and ``ops``: what is installed."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

from .arguments import Commands


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    info = commands.add_parser("info", help="versions, devices, ISA, provider library, operators")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)

    ops = commands.add_parser("ops", help="every npu:: operator")
    ops.add_argument("--json", action="store_true", help="print JSON")
    ops.set_defaults(run=_ops)


def _info(arguments: argparse.Namespace) -> None:
    import onnxruntime

    from .. import _C, __version__, get_ep_name, get_library_path

    devices = [
        {"id": i, **_C.device_properties(i), "memory_limit": _C.memory_limit(i)}
        for i in range(_C.device_count())
    ]
    try:
        kernels = _C.registered_ops()
    except RuntimeError as error:  # kernels of the level in ORT_NPU_ISA are not installed
        raise ImportError(str(error)) from error
    fused = sorted(k["type"] for k in kernels if k["domain"] == "npu")
    standard = sorted({k["type"] for k in kernels if k["domain"] == ""})
    facts: dict[str, Any] = {
        "onnxruntime_npu": __version__,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "provider": get_ep_name(),
        "library": get_library_path(),
        "isa": _C.isa(),
        "cpu_features": sorted(name for name, present in _C.cpu_features().items() if present),
        "threads": _C.num_threads(),
        "devices": devices,
        "npu_operators": fused,
        "onnx_operators": standard,
    }
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return
    for name in ("onnxruntime_npu", "onnxruntime", "python", "provider", "library", "isa"):
        print(f"{name:16} {facts[name]}")
    print(f"{'cpu features':16} {' '.join(facts['cpu_features'])}")
    print(f"{'threads':16} {facts['threads']}")
    for device in devices:
        print(
            f"{'device ' + str(device['id']):16} {device['name']}, "
            f"{device['compute_units']} compute units, {device['memory_limit'] / 2**30:.1f} GiB"
        )
    print(f"{'npu operators':16} {len(fused)} types of nodes; functions: onnxruntime-npu ops")
    print(f"{'onnx operators':16} {len(standard)}: {' '.join(standard)}")


def _ops(arguments: argparse.Namespace) -> None:
    from ..opdef.table import composition_table, op_table, portability

    rows, compositions = op_table(), composition_table()
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        first: list[str] = row["inputs"][0]["dtypes"] if row["inputs"] else []
        body = f"function body: {portability(row)}"
        print(f"{row['schema']}\n    npu::{row['onnx_type']}; {', '.join(first)}; {body}")
    for row in compositions:
        print(f"{row['schema']}\n    standard operators")
    print(f"{len(rows)} operators, and {len(compositions)} that consist of standard ones")
