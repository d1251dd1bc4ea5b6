#!/usr/bin/env python3
"""Peak memory of exports of a random 1.1 B model (the shape of TinyLlama), relative to its weights.

The checkpoint is safetensors in bfloat16, or a GGUF file whose integers are kept.

Each export runs in a process of its own. Its peak is the max resident set of the process, mapped
files included, less what was resident after the imports; weights are the bytes of model.onnx.data.
The written file is not checked: sessions would hold it.
The limit is 1.3.

With --ranks N the model is divided by tensor_parallel: weights are then those of the largest part,
and a second row is the peak of each rank that opens its part and generates two tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import harness
from tqdm import tqdm

LIMIT = 1.3
MIB = 2**20
SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
# (checkpoint, dtype, quant) of each export.
FLOATS = "bfloat16"
EXPORTS = [
    (FLOATS, "bfloat16", "w4a16"),
    (FLOATS, "bfloat16", "w8a16"),
    (FLOATS, "bfloat16", "w8a8_dynamic"),
    (FLOATS, "bfloat16", "none"),
    (FLOATS, "float16", "none"),
    (FLOATS, "float32", "none"),
    ("Q4_0", "bfloat16", "keep"),
    ("Q4_K", "bfloat16", "keep"),
    ("Q8_0", "bfloat16", "keep"),
    ("Q8_0", "bfloat16", "none"),
]


def shapes(layers: int) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of the weights outside layers, and of those of each layer, by name."""
    hidden, middle = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    kept = hidden * SHAPE["num_key_value_heads"] // SHAPE["num_attention_heads"]
    outer = {
        "model.embed_tokens.weight": (SHAPE["vocab_size"], hidden),
        "lm_head.weight": (SHAPE["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    inner = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kept, hidden),
        "self_attn.v_proj": (kept, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return [outer] + [
        {f"model.layers.{layer}.{name}.weight": shape for name, shape in inner.items()}
        for layer in range(layers)
    ]


def write_checkpoint(folder: Path, layers: int) -> None:
    """Write config.json and a safetensors file for each layer, in bfloat16."""
    import torch
    from safetensors.torch import save_file

    shards = shapes(layers)
    places, size = {}, 0
    folder.mkdir(parents=True)
    for index, shard in enumerate(tqdm(shards, desc="Writing the checkpoint", unit="file")):
        torch.manual_seed(index)
        tensors = {
            name: (1 + torch.randn(shape) / 10 if len(shape) == 1 else torch.randn(shape) / 32).to(
                torch.bfloat16
            )
            for name, shape in shard.items()
        }
        file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
        size += sum(tensor.nbytes for tensor in tensors.values())
    index_file = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))
    config = {**SHAPE, "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))


def write_gguf(folder: Path, layers: int, kind: str) -> None:
    """Write a GGUF file of random blocks; norms are float32."""
    import gguf
    import numpy as np

    folder.mkdir(parents=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama", use_temp_file=True)
    writer.add_block_count(layers)
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(SHAPE["vocab_size"])
    chosen = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[chosen]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    random = np.random.default_rng(0)
    for shard in tqdm(shapes(layers), desc=f"Writing {kind}", unit="layer"):
        for name, shape in shard.items():
            given = names.get_name(name, try_suffixes=(".weight",))
            if len(shape) == 1:
                writer.add_tensor(given, np.ones(shape, np.float32))
                continue
            blocks = random.integers(0, 256, (shape[0], shape[1] // values, size), np.uint8)
            # A block starts with its scale, and Q4_K with a second one, of the least values.
            for start in range(0, 4 if kind == "Q4_K" else 2, 2):
                blocks[..., start : start + 2] = np.array([1e-4], np.float16).view(np.uint8)
            writer.add_tensor(given, blocks.reshape(shape[0], -1), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _peak() -> int:
    """Return the max resident set of this program, in bytes: ru_maxrss includes its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _largest_part(out: Path) -> int:
    """Return the bytes of the weights, of several ranks those of the largest part."""
    return max(file.stat().st_size for file in out.rglob("model.onnx.data"))


def measure(checkpoint: str, out: str, dtype: str, quant: str, ranks: str) -> None:
    """Export in this process; print bytes and seconds as the last line."""
    import onnxruntime_npu.converters  # noqa: F401
    import torch.onnx._internal.exporter._core  # noqa: F401 - torch imports it when it exports
    from onnxruntime_npu.exporter import export_causal_lm
    from transformers.models.llama import modeling_llama  # noqa: F401

    imports = _peak()
    start = time.perf_counter()
    export_causal_lm(
        checkpoint, out, dtype=dtype, quant=quant, tensor_parallel=int(ranks), check=False
    )
    seconds = time.perf_counter() - start
    report(_largest_part(Path(out)), imports, seconds)


def report(weights: int, imports: int, seconds: float) -> None:
    """Print what a child has measured, as a line of its own."""
    peak = _peak() - imports
    found = {"weights": weights, "peak": peak, "imports": imports, "seconds": seconds}
    os.write(sys.stdout.fileno(), f"{json.dumps(found)}\n".encode())


def load(out: str) -> None:
    """Open this rank's part in this process and generate two tokens; print the same."""
    from onnxruntime_npu.generation import CausalLM

    imports = _peak()
    start = time.perf_counter()
    model = CausalLM(out)
    model.generate_tokens([[1, 2, 3]], max_new_tokens=2)
    weights = (model.directory / "model.onnx.data").stat().st_size
    report(weights, imports, time.perf_counter() - start)


def measured(*arguments: object, launcher: tuple[str, ...] = ()) -> dict[str, float]:
    """Return what a child process printed; of several, that of the largest peak."""
    command = [*launcher, sys.executable, __file__, *map(str, arguments)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return max(rows, key=lambda row: row["peak"] / row["weights"])


def told(name: str, row: dict[str, float]) -> dict[str, object]:
    """Print a row and return it with its name and ratio."""
    ratio = round(row["peak"] / row["weights"], 3)
    print(
        f"{name}: weights {row['weights'] / MIB:.0f} MiB, peak {row['peak'] / MIB:.0f} MiB, "
        f"{ratio:.2f} of the weights (limit {LIMIT}), {row['seconds']:.0f} s",
        flush=True,
    )
    return {"name": name, **row, "ratio": ratio}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        measure(*sys.argv[2:])
        return
    if sys.argv[1:2] == ["--load"]:
        load(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"], help="of 44 M")
    parser.add_argument("--only", default="", help="exports whose names match this pattern")
    parser.add_argument("--ranks", type=int, default=1, help="that the model is divided among")
    parser.add_argument("--out", type=Path, default=harness.FOLDER, help="folder to write to")
    arguments = parser.parse_args()
    rows = []
    for source, dtype, quant in EXPORTS:
        name = dtype if quant == "none" else f"{dtype}, {quant}"
        if source != FLOATS:
            name = f"{source} as {name}"
        if not re.search(arguments.only, name):
            continue
        checkpoint = arguments.out / f"checkpoint-{source}-{arguments.layers}-layers"
        if not checkpoint.exists():
            # Under its name when it is whole.
            partial = checkpoint.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            if source == FLOATS:
                write_checkpoint(partial, arguments.layers)
            else:
                write_gguf(partial, arguments.layers, source)
            partial.rename(checkpoint)
        out = arguments.out / "export-memory"
        shutil.rmtree(out, ignore_errors=True)
        ranks = arguments.ranks
        rows.append(told(name, measured("--child", checkpoint, out, dtype, quant, ranks)))
        if ranks > 1:
            launcher = (str(Path(sys.prefix) / "bin" / "mpiexec"), "-n", str(ranks))
            rows.append(told(f"{name}, a rank", measured("--load", out, launcher=launcher)))
        shutil.rmtree(out)
    (arguments.out / "export_memory.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
