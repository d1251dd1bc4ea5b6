"""transformers' Trainer, with accelerate, trains on npu unmodified."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

# A separate process: accelerate looks for torch_npu when it is imported.
SCRIPT = """
    import sys
    import onnxruntime_npu
    onnxruntime_npu.install_as_torch_npu()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    )
    rows = [torch.randint(0, 64, (8,)) for _ in range(8)]
    data = [{"input_ids": row, "labels": row.clone()} for row in rows]

    def train(steps, resume):
        arguments = TrainingArguments(
            sys.argv[1], per_device_train_batch_size=4, max_steps=steps, logging_steps=2,
            optim="adamw_torch_npu_fused",
            save_steps=4, learning_rate=1e-2, bf16=True, report_to=[], disable_tqdm=True,
        )
        assert arguments.device.type == "npu", arguments.device
        trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, [r["loss"] for r in trainer.state.log_history if "loss" in r]

    trainer, losses = train(4, False)
    assert float(losses[-1]) < float(losses[0]), losses
    resumed, losses = train(8, True)
    assert resumed.state.global_step == 8 and len(losses) == 4, losses
    assert float(losses[-1]) < float(losses[1]), losses
    assert trainer.evaluate(data)["eval_loss"] > 0
    counts = onnxruntime_npu.torch_device.fallback_counts()
    assert not counts, counts
    print("trained")
"""


def test_trainer_trains_saves_and_resumes_on_npu(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines()[-1] == "trained"
