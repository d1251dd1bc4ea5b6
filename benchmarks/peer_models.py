"""Converts a Hugging Face directory to a peer's model; runs in the peers' environment.

    python peer_models.py {onnxruntime,genai_engine,openvino,gguf} CHECKPOINT FOLDER DTYPE

onnxruntime: onnxruntime-genai's own builder, whose graph (GroupQueryAttention, fused norms) is the
best for the CPUExecutionProvider; genai reads the same. openvino: transformers' model, traced,
with a stateful cache, like optimum-intel's. gguf: llama.cpp's names and layout.
Each but genai_engine computes logits of the last token only. Weights of int8 and int4 are quantised
by the builder and by gguf's q8_0 and q4_0; for OpenVINO here, as nncf does it by default:
symmetrically, int8 by column, also in the head, and int4 in groups.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def onnxruntime(source: Path, folder: Path, dtype: str) -> None:
    _build(source, folder, dtype, "--extra_options", "prune_lm_head=true")


def genai_engine(source: Path, folder: Path, dtype: str) -> None:
    """The same with the logits of all tokens: the engine fails on a model without them."""
    _build(source, folder, dtype)


def _build(source: Path, folder: Path, dtype: str, *options: str) -> None:
    precision = {"float32": "fp32", "float16": "fp16"}.get(dtype, dtype)
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run(
            [
                *(sys.executable, "-m", "onnxruntime_genai.models.builder"),
                *("-i", str(source), "-o", str(folder), "-p", precision, "-e", "cpu", "-c", cache),
                *options,
            ],
            check=True,
        )


def _float32_model(source: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()


def openvino(source: Path, folder: Path, dtype: str) -> None:
    import openvino as ov
    import torch
    from openvino._offline_transformations import apply_make_stateful_transformation

    model = _float32_model(source)
    layers, heads = model.config.num_hidden_layers, model.config.num_key_value_heads
    size = model.config.hidden_size // model.config.num_attention_heads

    class Appended:
        """A cache by concatenation; transformers' own starts with an empty 1-D tensor."""

        is_compileable = False

        def __init__(self, past: tuple[torch.Tensor, ...]) -> None:
            self.pairs = [past[i : i + 2] for i in range(0, len(past), 2)]

        def get_seq_length(self, *_: Any) -> int:
            return self.pairs[0][0].shape[2]

        def update(self, key: Any, value: Any, layer: int, *_: Any, **__: Any) -> Any:
            past = zip(self.pairs[layer], (key, value), strict=True)
            self.pairs[layer] = tuple(torch.cat(pair, 2) for pair in past)
            return self.pairs[layer]

    class Stateless(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, positions: Any, *past: Any) -> Any:
            cache = Appended(past)
            columns = torch.arange(past[0].shape[2] + ids.shape[1])[None, None, None, :]
            mask = torch.where(columns <= positions[:, None, :, None], 0.0, float("-inf"))
            out = self.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            return (out.logits, *(tensor for pair in cache.pairs for tensor in pair))

    ids = torch.arange(4)[None] + 7
    past = [torch.zeros(1, heads, 3, size) for _ in range(2 * layers)]
    with torch.no_grad():
        graph = ov.convert_model(Stateless(), example_input=(ids, ids, *past))
    names = [f"past.{i}" for i in range(2 * layers)]
    shapes = {}
    for port, name in zip(graph.inputs, ["input_ids", "position_ids", *names], strict=True):
        port.get_tensor().set_names({name})
        shapes[port] = ov.PartialShape([-1, heads, -1, size] if name in names else [-1, -1])
    graph.reshape(shapes)
    presents = [name.replace("past", "present") for name in names]
    for port, name in zip(graph.outputs, ["logits", *presents], strict=True):
        port.get_tensor().set_names({name})
    _gather_beams(graph, names)
    apply_make_stateful_transformation(graph, dict(zip(names, presents, strict=True)))
    _start_empty(graph)
    packed = _compress(graph, model.config.vocab_size, dtype)
    ov.save_model(graph, folder / "model.xml", compress_to_fp16=False)
    del packed  # whose memory the graph has read


def _compress(graph: Any, vocabulary: int, dtype: str) -> list[Any]:
    """Quantise the weights of matmuls; return arrays whose memory the graph reads.

    Weights of floats stay float32: the plugin chooses the type when it compiles.
    """
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops
    from quantized_weights import group_of, nibbles

    packed: list[Any] = []
    if dtype not in ("int8", "int4"):
        return packed
    for node in [n for n in graph.get_ops() if n.get_type_name() == "MatMul"]:
        constant = node.input_value(1).get_node()
        if constant.get_type_name() != "Constant" or not node.get_attributes()["transpose_b"]:
            continue
        weight = np.array(constant.data, np.float32)
        rows, columns = weight.shape
        is_int4 = dtype == "int4" and rows != vocabulary
        groups = weight.reshape(rows, -1, group_of(columns) if is_int4 else columns)
        if is_int4:  # the largest value becomes -8, as the other quantisers have it
            largest = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)
            scales, limits = largest / -8, (-8, 7)
        else:
            scales, limits = np.abs(groups).max(-1, keepdims=True) / 127, (-127, 127)
        rounded = np.rint(groups / np.where(scales == 0, 1, scales))
        integers = np.clip(rounded, *limits).astype(np.int8)
        if is_int4:
            packed.append(np.ascontiguousarray(nibbles(integers.view(np.uint8) & 15)))
            stored = ops.constant(ov.Tensor(packed[-1], list(groups.shape), ov.Type.i4))
        else:
            stored, scales = ops.constant(integers[:, 0]), scales[:, 0]
        values = ops.multiply(ops.convert(stored, "f32"), ops.constant(scales))
        if is_int4:
            values = ops.reshape(values, ops.constant(np.array([rows, columns])), False)
        node.input(1).replace_source_output(values.output(0))
    graph.validate_nodes_and_infer_types()
    return packed


def _gather_beams(graph: Any, names: list[str]) -> None:
    """Add a beam reordering, without which the plugin does not fuse cache and attention."""
    import numpy as np
    from openvino import PartialShape
    from openvino import opset13 as ops

    beams = ops.parameter(PartialShape([-1]), np.int32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    graph.add_parameters([beams])
    for name in names:
        past = graph.input(name).get_node()
        consumers = past.output(0).get_target_inputs()
        gathered = ops.gather(past, beams, ops.constant(0, dtype=np.int64))
        for consumer in consumers:
            consumer.replace_source_output(gathered.output(0))
    graph.validate_nodes_and_infer_types()


def _start_empty(graph: Any) -> None:
    """Initialise the state to an empty cache of the batch's size."""
    import numpy as np
    from openvino import opset13 as ops

    shape = ops.shape_of(graph.input("input_ids").get_node(), output_type="i64")
    zero = ops.constant(0, dtype=np.int64)
    batch = ops.gather(shape, ops.constant([0], dtype=np.int64), zero)
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            dimensions = node.get_output_partial_shape(0)
            rest = [dimensions[1].get_length(), 0, dimensions[3].get_length()]
            empty = ops.concat([batch, ops.constant(rest, dtype=np.int64)], 0)
            value = ops.broadcast(ops.constant(0.0, dtype=np.float32), empty)
            node.set_arguments([value.output(0)])
    graph.validate_nodes_and_infer_types()


def gguf(source: Path, folder: Path, dtype: str) -> None:
    import gguf as format_
    import torch

    model = _float32_model(source)
    config = model.config
    architecture = config.model_type  # llama.cpp calls llama and qwen2 the same
    kinds = {
        "float32": format_.GGMLQuantizationType.F32,
        "float16": format_.GGMLQuantizationType.F16,
        "bfloat16": format_.GGMLQuantizationType.BF16,
        "int8": format_.GGMLQuantizationType.Q8_0,
        "int4": format_.GGMLQuantizationType.Q4_0,
    }
    file_types = {
        "float32": format_.LlamaFileType.ALL_F32,
        "float16": format_.LlamaFileType.MOSTLY_F16,
        "bfloat16": format_.LlamaFileType.MOSTLY_BF16,
        "int8": format_.LlamaFileType.MOSTLY_Q8_0,
        "int4": format_.LlamaFileType.MOSTLY_Q4_0,
    }
    size = config.hidden_size // config.num_attention_heads
    writer = format_.GGUFWriter(folder / "model.gguf", architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(size)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(file_types[dtype])
    _add_vocabulary(writer, source, architecture)
    names = format_.get_tensor_name_map(
        getattr(format_.MODEL_ARCH, architecture.upper()), config.num_hidden_layers
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        role = name.split(".")[-2]
        if architecture == "llama" and role in heads:
            # llama.cpp rotates neighbouring pairs here, transformers the two halves of a head.
            halves = weight.view(heads[role], 2, size // 2, -1)
            weight = halves.transpose(1, 2).reshape(weight.shape)
        kind = kinds[dtype] if weight.dim() == 2 else kinds["float32"]
        values = weight.to(torch.float32).contiguous().numpy()
        data = format_.quants.quantize(values, kind)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(target, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, source: Path, architecture: str) -> None:
    """Write the tokenizer, which servers need even for prompts of ids."""
    import gguf as format_

    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()} | special
    kinds = format_.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre({"llama": "smollm", "qwen2": "qwen2"}[architecture])
    writer.add_token_list([tokens[index] for index in range(len(tokens))])
    writer.add_token_types(
        [kinds.CONTROL if index in special else kinds.NORMAL for index in range(len(tokens))]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    end = json.loads((source / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)


CONVERTERS = {
    "onnxruntime": onnxruntime,
    "genai_engine": genai_engine,
    "openvino": openvino,
    "gguf": gguf,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert a checkpoint for a peer.")
    parser.add_argument("kind", choices=list(CONVERTERS), help="what reads it")
    parser.add_argument("source", type=Path, help="Hugging Face directory")
    parser.add_argument("folder", type=Path, help="where to write")
    dtypes = ["float32", "bfloat16", "float16", "int8", "int4"]
    parser.add_argument("dtype", choices=dtypes, help="of weights")
    arguments = parser.parse_args()
    CONVERTERS[arguments.kind](arguments.source, arguments.folder, arguments.dtype)


if __name__ == "__main__":
    main()
