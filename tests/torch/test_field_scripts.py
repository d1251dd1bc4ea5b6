"""Fragments of scripts for torch_npu, in a process that installed the package under that name."""

import subprocess
import sys

import pytest

PREPARE = """
import onnxruntime_npu
onnxruntime_npu.install_as_torch_npu()
import torch
import torch_npu
"""

FRAGMENTS = {
    "settings": """
torch_npu.npu.set_compile_mode(jit_compile=False)
torch.npu.config.allow_internal_format = False
torch.npu.conv.allow_hf32 = torch.npu.matmul.allow_hf32 = False
torch.npu.set_option({"ACL_PRECISION_MODE": "must_keep_origin_dtype"})
torch.npu.set_device("npu:0")
torch_npu.npu._lazy_init()
""",
    "is it there": """
import importlib.metadata, importlib.util
assert importlib.util.find_spec("torch_npu") is not None
for name in ("torch_npu", "torch-npu"):
    assert importlib.metadata.version(name) == torch_npu.__version__
assert torch_npu.version.__version__ == torch_npu.__version__
assert importlib.metadata.packages_distributions()["torch_npu"] == ["torch_npu"]
assert torch.npu.is_available() and torch_npu.npu.device_count() > 0
""",
    "devices and memory": """
free, total = torch_npu.npu.mem_get_info()
assert 0 < free <= total == torch.npu.get_device_properties(0).total_memory
assert "NPU" in torch.npu.get_device_name() and torch_npu.npu.get_soc_version() == -1
torch_npu.npu.empty_cache()
assert torch.npu.memory.NPUPluggableAllocator is torch.npu.NPUPluggableAllocator
torch.npu.default_generators[0].manual_seed(1)
""",
    "fused operators with gradients": """
x = torch.randn(2, 16, 4, 8, device="npu", requires_grad=True)
cos, sin = torch.rand(1, 16, 1, 8).npu(), torch.rand(1, 16, 1, 8).npu()
q = torch_npu.npu_rotary_mul(x, cos, sin)
o = torch_npu.npu_fusion_attention(q, q, q, 4, input_layout="BSND", scale=8**-0.5)[0]
gamma = torch.ones(8, device="npu", requires_grad=True)
y, _ = torch_npu.npu_rms_norm(o, gamma, epsilon=1e-6)
torch_npu.npu_swiglu(y, dim=-1).sum().backward()
assert x.grad.isfinite().all() and gamma.grad.abs().sum() > 0
""",
    "mixed precision with a fused optimizer": """
from torch_npu.npu.amp import GradScaler, autocast
from torch_npu.optim import NpuFusedAdamW
model = torch.nn.Linear(8, 2).npu()
optimizer = NpuFusedAdamW(model.parameters(), lr=1e-2)
scaler, losses = GradScaler(), []
x = torch.randn(16, 8).npu(non_blocking=True)
for _ in range(5):
    optimizer.zero_grad()
    with autocast(dtype=torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
""",
}


# One process for all, each with names of its own; a traceback names the fragment.
EACH = """
for name, fragment in FRAGMENTS.items():
    exec(compile(fragment, name, "exec"), dict(globals()))
"""


def test_script_fragments_run(run_python):
    assert run_python(f"{PREPARE}FRAGMENTS = {FRAGMENTS!r}{EACH}") == (0, "")


SOC_VERSION = """
from unittest import mock
print(torch_npu.npu.get_soc_version())
for name in ("Ascend910_9363", "Ascend310P3"):
    with mock.patch("onnxruntime_npu.npu.utils.get_device_name", lambda: name):
        print(torch_npu.npu.get_soc_version())
"""


def test_soc_version_follows_the_device_name_variable(run_python):
    code, output = run_python(PREPARE + SOC_VERSION, ORT_NPU_DEVICE_NAME="Ascend910B2")
    assert (code, output.split()) == (0, ["221", "256", "202"])


LANGUAGE_MODEL = """
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import is_torch_npu_available
assert is_torch_npu_available(check_device=True) and Accelerator().device.type == "npu"

config = LlamaConfig(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
)
torch.manual_seed(182)
host = LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
tokens = torch.randint(1, 97, (2, 12))
mask = torch.ones_like(tokens)
mask[0, :4] = 0
options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
exact = host.generate(
    tokens, attention_mask=mask, output_scores=True, return_dict_in_generate=True, **options
)
# No two tokens are so close that errors within the tolerances could exchange them.
assert min(score.topk(2).values.diff().abs().min() for score in exact.scores) > 2e-2
for attention in ("sdpa", "flash_attention_2"):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        # bfloat16: 2^-8 of logits below 1, over a few roundings.
        model = LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()
        model.load_state_dict(host.state_dict())
        model = model.to("npu", dtype)
        for given in (None, mask):
            on_npu = None if given is None else given.npu()
            with torch.no_grad():
                expected = host(tokens, attention_mask=given).logits
                got = model(tokens.npu(), attention_mask=on_npu).logits.float().cpu()
            seen = mask.bool() if given is not None else torch.ones_like(mask, dtype=torch.bool)
            torch.testing.assert_close(got[seen], expected[seen], rtol=0, atol=tolerance)
        generated = model.generate(tokens.npu(), attention_mask=mask.npu(), **options).cpu()
        assert torch.equal(generated, exact.sequences)
    model.train()(tokens.npu(), attention_mask=mask.npu(), labels=tokens.npu()).loss.backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0
counts = onnxruntime_npu.torch_device.fallback_counts()
assert not counts, counts
"""


def test_language_models_use_npu_fusion_attention(run_python):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    code, output = run_python(PREPARE + LANGUAGE_MODEL, HF_HUB_OFFLINE="1")
    assert code == 0, output


SCRIPT = """
import sys
import torch
import torch_npu
from beside import answer
assert torch.ones(2).npu().sum().item() == 2 and __name__ == "__main__"
print(sys.argv[1:], answer, torch.cuda.is_available())
if "fail" in sys.argv:
    raise FileNotFoundError("mine")
"""


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["--cuda", "script.py"], 0, "[] 42 True\n", ""),
        pytest.param(["-m", "script", "x"], 0, "['x'] 42 False\n", "", marks=pytest.mark.slow),
        (["script.py", "--cuda", "-m", "fail"], 1, "['--cuda', '-m', 'fail'] 42 False\n",
         "FileNotFoundError: mine"),
        (["none.py"], 2, "", "error: run expected a script, got 'none.py', which does not exist"),
    ],
)  # fmt: skip
def test_command_runs_a_script_like_python(tmp_path, arguments, code, out, err):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("answer = 42")
    run = subprocess.run(
        [sys.executable, "-m", "onnxruntime_npu.cli", "run", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (run.returncode, run.stdout) == (code, out), run.stderr
    assert err in run.stderr
    assert "runpy" not in run.stderr  # only the script's own lines
