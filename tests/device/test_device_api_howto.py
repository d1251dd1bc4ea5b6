"""The function, row and call of docs/howto/device_api.md work."""

from __future__ import annotations

import re
from pathlib import Path

from onnxruntime_npu import npu
from onnxruntime_npu.npu import memory
from onnxruntime_npu.npu.api_table import Row
from row_calls import CALLS, Context, calls

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "device_api.md"


def test_device_function_example_works(tmp_path, request, run_python, monkeypatch):
    function, row, call = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    module = dict(vars(memory))
    exec(function, module)
    monkeypatch.setattr(npu, "memory_pressure", module["memory_pressure"], raising=False)
    row = eval(row.strip().rstrip(","), {"Row": Row})
    exec(call, {"calls": calls, "npu": npu})
    context = Context(tmp_path, request, run_python)
    try:
        CALLS.pop(row.name)(context, row.name.rpartition(".")[2])
    finally:
        context.close()
