"""Checkpoints of integers as other tools write them.

The packers follow the tools' own documents, bit by bit, and share no code with the readers.
"""

from __future__ import annotations

import json

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.pytorch_utils import Conv1D

from .conftest import tiny_model

GROUP = 16


def words_along_rows(values: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned values [rows, columns] in a stream of bits down each column, lowest bits first."""
    rows, columns = values.shape
    words = np.zeros((-(-rows * bits // 32), columns), np.uint64)
    for row in range(rows):
        for bit in range(bits):
            at = row * bits + bit
            words[at // 32] |= ((values[row].astype(np.uint64) >> bit) & 1) << (at % 32)
    return words.astype(np.uint32).view(np.int32)


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


class Quantised:
    """A weight [out, in] on a grid: integers q of `bits`, zero points and scales of its groups."""

    def __init__(self, out_features, in_features, bits, rng, *, group=GROUP, symmetric=False):
        groups = -(-in_features // group)
        self.bits, self.group = bits, group
        self.q = rng.integers(0, 2**bits, (out_features, in_features))
        middle = np.full((out_features, groups), 2 ** (bits - 1))
        self.zero = middle if symmetric else rng.integers(1, 2**bits, (out_features, groups))
        # Powers of two, which float16 has, of about the size that the weight had.
        self.scale = np.exp2(rng.integers(-2, 0, (out_features, groups)) - bits - 1.0)
        self.of_input = np.arange(in_features) // group

    @property
    def weight(self) -> torch.Tensor:
        spread = (self.q - self.zero[:, self.of_input]) * self.scale[:, self.of_input]
        return torch.tensor(spread, dtype=torch.float32)


def as_gptq(w: Quantised, *, version=1, act_order=False, rng=None):
    if act_order:
        w.of_input = rng.permutation(w.of_input)
    return {
        "qweight": tensor(words_along_rows(w.q.T, w.bits)),
        "qzeros": tensor(words_along_rows(w.zero - (version == 1), w.bits).T),
        "scales": tensor(w.scale.T).half(),
        "g_idx": torch.tensor(w.of_input, dtype=torch.int32),
    }


def as_awq(w: Quantised):
    def words(values):
        """[rows, columns] to [rows, columns / 8]: nibble n of a word is its output order[n]."""
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        eights = values.reshape(values.shape[0], -1, 8).astype(np.uint32)
        packed = sum(eights[..., order[n]] << np.uint32(4 * n) for n in range(8))
        return tensor(packed.astype(np.uint32).view(np.int32))

    return {
        "qweight": words(w.q.T),
        "qzeros": words(w.zero.T),
        "scales": tensor(w.scale.T).half(),
    }


def as_packed_tensors(w: Quantised):
    return {
        "weight_packed": tensor(words_along_rows(w.q.T, w.bits).T),
        "weight_scale": tensor(w.scale).half(),
        "weight_zero_point": tensor(words_along_rows(w.zero, w.bits)),
        "weight_shape": torch.tensor(w.q.shape),
    }


def as_int8_tensors(w: Quantised):
    return {
        "weight": tensor((w.q - 128).astype(np.int8)),
        "weight_scale": tensor(w.scale).float(),
    }


GPTQ = {"quant_method": "gptq", "group_size": GROUP, "sym": False}


def tensors_config(format_name, **weights):
    group = {"targets": ["Linear"], "weights": {"type": "int", "group_size": GROUP, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FORMATS = {
    "gptq": ({**GPTQ, "bits": 4}, 4, as_gptq),
    "gptq-act-order": (
        {**GPTQ, "bits": 4, "desc_act": True},
        4,
        lambda w: as_gptq(w, act_order=True, rng=np.random.default_rng(5)),
    ),
    "gptq-8-bits": ({**GPTQ, "bits": 8}, 8, as_gptq),
    "gptq-3-bits": ({**GPTQ, "bits": 3}, 3, as_gptq),
    "gptq-v2": (
        {**GPTQ, "bits": 4, "checkpoint_format": "gptq_v2"},
        4,
        lambda w: as_gptq(w, version=2),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, 4, as_awq),
    "pack-quantized": (tensors_config("pack-quantized", num_bits=4), 4, as_packed_tensors),
}


def checkpoint(path, kind, name, **quantised):
    """Save a tiny model in a format; return it in floats."""
    config, bits, pack = FORMATS[name]
    rng = np.random.default_rng(3)
    model = tiny_model(kind)
    stored = {}
    for layer_name, layer in projections(model).items():
        weight = as_stored(layer)
        w = Quantised(*weight.shape, bits, rng, **quantised)
        stored |= {f"{layer_name}.{key}": value for key, value in pack(w).items()}
        with torch.no_grad():
            weight.copy_(w.weight)
    return save(path, model, stored, config)


def projections(model):
    """Return the layers that tools quantise, by name."""
    kinds = (torch.nn.Linear, Conv1D)
    layers = {name: each for name, each in model.named_modules() if isinstance(each, kinds)}
    layers.pop("lm_head")
    return layers


def as_stored(layer):
    """Return a view [out, in] of a layer's weight, as tools store it."""
    return layer.weight.t() if isinstance(layer, Conv1D) else layer.weight


def save(path, model, stored, config):
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for key in stored:
        tensors.pop(f"{key.rpartition('.')[0]}.weight", None)
    save_file(tensors | stored, path / "model.safetensors", {"format": "pt"})
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "quantization_config": config}))
    return model


def experts_checkpoint(path, kind, name, changed=lambda pack: pack, **quantised):
    """Save a tiny model of experts, whose layers files have one by one; return it in floats."""
    config, bits, pack = FORMATS[name]
    rng = np.random.default_rng(3)
    tiny_model(kind).save_pretrained(path / "floats")
    floats = load_file(path / "floats" / "model.safetensors")
    stored, packed = {}, changed(pack)
    for key in [key for key in floats if ".experts." in key]:
        layer = key.removesuffix(".weight")
        w = Quantised(*floats[key].shape, bits, rng, **quantised)
        stored |= {f"{layer}.{name}": value for name, value in packed(w).items()}
        floats[key] = w.weight
    assert stored
    save_file(floats, path / "floats" / "model.safetensors", {"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(path / "floats", dtype="float32")
    save(path / "source", model, stored, config)
    return model.eval()


def corrupt(path, change):
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, file, {"format": "pt"})
