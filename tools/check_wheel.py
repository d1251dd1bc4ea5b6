#!/usr/bin/env python3
"""Install the newest wheel of a folder into an empty virtual environment and run a model."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PROGRAM = """
import numpy as np
import onnx.parser
import onnxruntime as ort
import onnxruntime_npu

model = onnx.parser.parse_model('''
<ir_version: 10, opset_import: ["" : 21]>
agraph (float[N] x, float[N] y) => (float[N] z) { z = Add(x, y) }
''')
session = ort.InferenceSession(model.SerializeToString(), providers=["NPUExecutionProvider"])
x = np.arange(4, dtype=np.float32)
np.testing.assert_array_equal(session.run(None, {"x": x, "y": x})[0], 2 * x)
placed = onnxruntime_npu.assignment(session)
assert [node["provider"] for node in placed] == ["NPUExecutionProvider"], placed
assert len(onnxruntime_npu.op_table()) > 0
print("the wheel runs: onnxruntime", ort.__version__, "on", onnxruntime_npu.get_ep_name())
"""


def main() -> int:
    wheels = sorted(Path(sys.argv[1]).glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        print(f"no wheel in {sys.argv[1]}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, wheels[-1], "onnx"], check=True)
        return subprocess.run([python, "-c", PROGRAM], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
