"""Calls every row of the device API's table and checks the effect."""

from pathlib import Path

import pytest
import row_calls.devices
import row_calls.legacy_types
import row_calls.memory
import row_calls.settings
import row_calls.tools
import row_calls.work  # noqa: F401 - each registers its calls
from onnxruntime_npu import npu
from onnxruntime_npu.npu.api_table import ROWS, markdown
from row_calls import CALLS, Context


@pytest.fixture
def torch_npu():
    """The package with torch imported and npu registered."""
    pytest.importorskip("torch")
    import onnxruntime_npu
    from onnxruntime_npu import torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    torch_device.register()
    return onnxruntime_npu


@pytest.fixture
def context(tmp_path, request, run_python):
    made = Context(tmp_path, request, run_python)
    yield made
    made.close()


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row(row, context):
    if row.supported:
        CALLS[row.name](context, row.name.rpartition(".")[2])
        return
    owner = npu
    with pytest.raises(AttributeError):
        for part in row.name.split(".")[1:]:
            owner = getattr(owner, part)


def test_every_device_function_has_a_row():
    assert set(CALLS) == {row.name for row in ROWS if row.supported}


def test_document_matches_the_table():
    document = Path(__file__).resolve().parents[2] / "docs" / "device_api.md"
    assert document.read_text() == markdown(), (
        "run: python -m onnxruntime_npu.npu.api_table > docs/device_api.md"
    )
