"""tools/loops_outside_kernels.py finds launches and parallel loops in the bindings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import loops_outside_kernels


def lines(root: Path, place: str, text: str) -> list[str]:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return list(loops_outside_kernels.found(root, [path]))


def test_launches_and_loops_are_reported_by_line(tmp_path):
    text = (
        "// stream.Launch(\nvoid F() {\n  StreamOf(x).Launch(op, f);\n  ParallelFor(n, 1, g);\n}\n"
    )
    assert lines(tmp_path, "python/csrc/torch/a.cc", text) == [
        "python/csrc/torch/a.cc:3: launches on a stream: belongs into ep/kernels",
        "python/csrc/torch/a.cc:4: runs a parallel loop: belongs into ep/kernels",
    ]
    assert len(lines(tmp_path, "python/csrc/b.cc", "stream->Launch(op, f);")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "for (int64_t i = 0; i < n; ++i) t.mutable_data_ptr<float>()[i] = 0;",
        "auto rows = t.accessor<float, 2>();",
        "auto* y = static_cast<const at::Half*>(t.const_data_ptr());",
        "at::native::cpu_kernel(iter, f);",
        "at::parallel_for(0, n, 1, f);",
    ],
)
def test_elements_of_a_tensor_are_not_read_by_the_torch_device(tmp_path, text):
    assert len(lines(tmp_path, "python/csrc/torch/a.cc", f"void F() {{\n  {text}\n}}\n")) == 1


def test_addresses_and_headers_of_process_groups_are_no_elements(tmp_path):
    address = "stream.Copy(to.mutable_data_ptr(), static_cast<char*>(from.data_ptr()), n, kind);"
    assert lines(tmp_path, "python/csrc/torch/a.cc", address) == []
    header = "header.mutable_data_ptr<int64_t>()[0] = tensor.numel();"
    assert lines(tmp_path, "python/csrc/torch_distributed/a.cc", header) == []


def test_kernels_and_functions_of_the_same_name_are_ignored(tmp_path):
    assert lines(tmp_path, "python/csrc/c.cc", "Launch(call); AddLaunch(span);") == []
    assert lines(tmp_path, "ep/kernels/d.cc", "ctx.Launch(op, f); ParallelFor(n, 1, g);") == []
