"""The report's sections and targets."""

import report
import results
import summary
from results import Measurement, Run


def run_of(seconds):
    """A run of `npu` and two peers; their seconds by case, each the same in two rounds."""
    return Run(
        ["npu"],
        [
            Measurement(case, engine, 1, "GFLOP", [took, took])
            for case, all_of_them in seconds.items()
            for engine, took in zip(("npu", "torch", "other"), all_of_them, strict=True)
        ],
    )


PRODUCTS = run_of(
    {
        "bfloat16 576x576 M=128": (1.0, 2.0, 8.0),
        "bfloat16 4096x4096 M=128": (1.0, 4.0, 1.125),
        "bfloat16 576x576 M=512": (1.0, 1.25, 3.0),
    }
)


def test_matmul_is_compared_with_best_peer_per_shape():
    lines = report.part_targets("matmul", PRODUCTS, amx=True).splitlines()
    assert lines[2] == "| bfloat16 M=128 | 1.50 | 1.12 | ≥ 1.3, 1.1 | met (+2%) |"
    assert lines[3] == "| bfloat16 M=512 | 1.25 | 1.25 | ≥ 1.3, 1.1 | **missed by 4%** |"
    assert len(lines) == 4


def test_matmul_target_without_amx_is_parity_with_best_peer():
    lines = report.part_targets("matmul", PRODUCTS, amx=False).splitlines()
    assert lines[3] == "| bfloat16 M=512 | 1.25 | 1.25 | ≥ 1.0, 1.0 | met (+25%) |"


def test_attention_target_applies_to_bfloat16_prefill_only():
    took = {
        "bfloat16 prefill 512": (1.0, 3.0, 4.0),
        "bfloat16 decode over 1k": (1.0, 3.0, 4.0),
    }
    lines = report.part_targets("attention", run_of(took), amx=False).splitlines()
    assert lines[2:] == ["| bfloat16 prefill 512 | 3.00 | 3.00 | ≥ 2.0, 2.0 | met (+50%) |"]
    float32 = run_of({"float32 prefill 512": (1.0, 3.0, 4.0)})
    assert report.part_targets("attention", float32, amx=False) == ""


def test_lower_isa_results_have_their_own_section_and_target(tmp_path, monkeypatch):
    machine = {
        "date": "today", "cpu": "a CPU", "threads": 2, "memory_gib": 24, "isa": "amx",
        "features": ["amx_bf16"], "system": "a system", "onnxruntime": "1.31",
    }  # fmt: skip
    monkeypatch.setattr(results, "machine", lambda: machine)
    results.save(PRODUCTS, tmp_path / "matmul-bfloat16.json")
    results.save(PRODUCTS, tmp_path / "matmul-bfloat16-avx2.json")
    text = report.text(tmp_path, {})
    title = "### Matmuls, weights from memory, bfloat16"
    whole, limited = text.split(f"{title} with `ORT_NPU_ISA=avx2`\n")
    assert f"{title}\n" in whole and "≥ 1.3, 1.1" in whole
    assert "| bfloat16 M=512 | 1.25 | 1.25 | ≥ 1.0, 1.0 | met (+25%) |" in limited
    assert "≥ 1.3, 1.1" not in limited


def test_performance_page_is_generated_from_reports():
    assert summary.DOCS.read_text() == summary.docs(), "run: python benchmarks/llm.py --write-docs"


def test_summary_marks_ratios_below_target(tmp_path):
    took = {
        "M bfloat16 prefill 128": (1.0, 2.5, 4.0),
        "M bfloat16 decode @128": (1.0, 1.2, 4.0),
    }
    results.save(run_of(took), tmp_path / "llm-M-bfloat16.json")
    line = summary.of_models(tmp_path).splitlines()[2]
    assert line == "| M, bfloat16 | 2.50 | - | - | **1.20** | - | - | ≥ 2.0, ≥ 1.3 |"


def test_fused_call_overhead_is_bounded_by_torch_add():
    run = run_of({"float32 npu_silu": (1.0, 0.7, 0.9), "float32 npu_gelu": (1.0, 1.54, 1.6)})
    assert report.part_targets("calls", run, amx=False).splitlines()[2:] == [
        "| float32 npu_silu | 0.70 | 0.70 | ≥ 0.77, 0.77 | **missed by 9%** |",
        "| float32 npu_gelu | 1.54 | 1.54 | ≥ 0.77, 0.77 | met (+100%) |",
    ]


def test_convolutions_are_grouped_by_batch_and_kind():
    took = {"N=1 1x1/1 64-64": (1.0, 0.9, 0.8), "N=1 3x3/1 64-64": (1.0, 1.6, 2.0)}
    run = run_of({**took, "N=1 depthwise 3x3/1 96-96": (1.0, 1.1, 1.2)})
    assert report.part_targets("convolution", run, amx=True).splitlines()[2:] == [
        "| N=1 | 1.13 | 0.80 | ≥ 1.0, 1.0 | **missed by 20%** |",
        "| N=1 depthwise | 1.10 | 1.10 | ≥ 1.0, 1.0 | met (+10%) |",
    ]


def test_torch_operators_are_grouped_by_dtype():
    took = {
        "sort float32": (1.0, 4.0, 4.0),
        "mv, transposed float32": (1.0, 1.0, 1.0),
        "sort bfloat16": (4.0, 1.0, 1.0),
    }
    lines = report.part_targets("aten", run_of(took), amx=False).splitlines()
    assert lines[2] == "| float32 | 2.00 | 1.00 | ≥ 1.0, 0.5 | met (+100%) |"
    assert lines[3] == "| bfloat16 | 0.25 | 0.25 | ≥ 1.0, 0.5 | **missed by 75%** |"
