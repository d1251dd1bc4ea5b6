"""The command ``onnxruntime-npu``.

Outside the package, because importing that may fail, for instance on a bad ``ORT_NPU_*`` variable,
and a command owes its user one line and not a traceback.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from onnxruntime_npu import cli
    except ImportError as error:
        print(f"onnxruntime-npu: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("onnxruntime-npu: error: interrupted", file=sys.stderr)
        return 130
    return cli.main()
