"""Whole files of other exporters are converted, inlined, given bodies, or refused in one line."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import transformers
from comparison import PROVIDERS, model_of, run
from onnx import helper, numpy_helper
from onnxruntime_npu import cli
from onnxruntime_npu.converters import attach_bodies, convert, inline
from onnxruntime_npu.errors import ArgumentError, ExportError, UnsupportedError

AUTO = torch.export.Dim.AUTO
DECODER = {
    "npu::NPUAddRmsNorm": 4,
    "npu::NPUFusedInferAttentionScore": 2,
    "npu::NPURmsNorm": 1,
    "npu::NPURotaryMul": 4,
    "npu::NPUSwiGlu": 2,
}
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


class Decoder(torch.nn.Module):
    """A language model with its cache as inputs and outputs, as users wrap it for torch.onnx."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask, *past):
        cache = transformers.DynamicCache(config=self.model.config)
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        logits = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache).logits
        return (logits, *(t for layer in cache.layers for t in (layer.keys, layer.values)))


def tiny_llama(dtype=torch.float32):
    torch.manual_seed(2)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3) if parameter.dim() > 1 else parameter.add_(
                torch.randn_like(parameter) / 5
            )
    return Decoder(model.to(dtype))


def arguments(dtype, rows, tokens, past):
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, 97, (rows, tokens), generator=generator)
    mask = torch.ones(rows, past + tokens, dtype=torch.long)
    caches = [torch.randn(rows, 2, past, 16, generator=generator).to(dtype) for _ in range(4)]
    return (ids, mask, *caches)


def stock_export(module, args, dynamic, path, opset):
    program = torch.export.export(module, args, dynamic_shapes=dynamic, strict=False)
    torch.onnx.export(program, (), opset_version=opset, dynamo=True, verbose=False).save(path)


def input_names(path):
    return [value.name for value in onnx.load(path, load_external_data=False).graph.input]


def torchscript_export(module, args, axes, path):
    """Export as optimum does; ``axes``: the named ones of each input."""
    torch.onnx.export(
        module.eval(), args, path, input_names=list(axes), dynamic_axes=axes, opset_version=17,
        dynamo=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "opset"), [(torch.float16, 18), (torch.float32, 23), (torch.float32, 17)]
)
def test_decoder_of_torch_onnx_is_fused_throughout(tmp_path, dtype, opset):
    """That of opset 17 is exported without dynamo, and computes sizes that are known."""
    module, example = tiny_llama(dtype), arguments(dtype, 2, 3, 5)
    if opset == 17:
        axes = {"ids": {0: "rows", 1: "tokens"}, "mask": {0: "rows", 1: "keys"}}
        axes |= {f"past_{i}": {0: "rows", 2: "past"} for i in range(4)}
        torchscript_export(module, example, axes, tmp_path / "stock.onnx")
    else:
        caches = tuple({0: AUTO, 2: AUTO} for _ in range(4))
        dynamic = ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}, caches)
        stock_export(module, example, dynamic, tmp_path / "stock.onnx", opset)
    report = convert(tmp_path / "stock.onnx", tmp_path / "fused.onnx")
    assert {k: n for k, n in report.nodes.items() if k.startswith("npu::")} == DECODER
    assert report.left == {} and report.without_body == []
    plain = inline(tmp_path / "fused.onnx", tmp_path / "plain.onnx")
    assert not any("::" in name for name in plain)
    # Float32 sums in another order; float16 weights and activations round at every step.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    names = [
        v.name for v in onnx.load(tmp_path / "fused.onnx", load_external_data=False).graph.input
    ]
    for rows, tokens, past in ((2, 4, 0), (3, 1, 6), (1, 3, 5)):
        args = arguments(dtype, rows, tokens, past)
        if rows > 1 and past:
            args[1][0, :2] = 0
        with torch.no_grad():
            expected = module(*(a.clone() for a in args))
        for file, provider in (
            *(("fused.onnx", provider) for provider in PROVIDERS),
            ("plain.onnx", PROVIDERS[1]),
        ):
            inputs = {n: a.numpy() for n, a in zip(names, args, strict=True)}
            for actual, wanted in zip(
                run(tmp_path / file, provider, inputs), expected, strict=True
            ):
                bound = tolerance * wanted.abs().max().item()
                np.testing.assert_allclose(actual, wanted, rtol=0, atol=bound, err_msg=file)


def merged_as_optimum_does(past: onnx.ModelProto, prompt: onnx.ModelProto) -> onnx.ModelProto:
    """Return one model of two, branches of an If whose weights and axes are the outer graph's."""
    weights, branches = {}, []
    for prefix, model in (("past", past), ("prompt", prompt)):
        inputs, names = {value.name for value in model.graph.input}, {}
        for tensor in model.graph.initializer:
            key = (tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes())
            names[tensor.name] = weights.setdefault(key, (f"{prefix}_{tensor.name}", tensor))[0]
        for node in model.graph.node:
            for values in (node.input, node.output):
                new = [n if n in ("", *inputs) else names.get(n, f"{prefix}/{n}") for n in values]
                values[:] = new
        outputs = [
            onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in model.graph.output
        ]
        for value in outputs:
            value.name = f"{prefix}/{value.name}"
        branches.append(helper.make_graph(list(model.graph.node), prefix, [], outputs))
    flag = helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
    node = helper.make_node(
        "If", [flag.name], [value.name for value in past.graph.output], name="either",
        then_branch=branches[0], else_branch=branches[1],
    )  # fmt: skip
    tensors = []
    for name, tensor in weights.values():
        tensors.append(onnx.TensorProto.FromString(tensor.SerializeToString()))
        tensors[-1].name = name
    graph = helper.make_graph(
        [node], "merged", [*past.graph.input, flag], past.graph.output, tensors
    )
    return helper.make_model(graph, opset_imports=past.opset_import, ir_version=past.ir_version)


def merged_decoder(folder, module):
    ids, mask, *past = arguments(torch.float32, 2, 3, 5)
    axes = {"ids": {0: "rows", 1: "tokens"}, "mask": {0: "rows", 1: "keys"}}
    torchscript_export(module, (ids, mask[:, 5:]), axes, folder / "prompt.onnx")
    axes |= {f"past_{i}": {0: "rows", 2: "past"} for i in range(4)}
    torchscript_export(module, (ids, mask, *past), axes, folder / "past.onnx")
    return merged_as_optimum_does(
        onnx.load(folder / "past.onnx"), onnx.load(folder / "prompt.onnx")
    )


def test_both_branches_of_a_merged_decoder_are_fused_throughout(tmp_path):
    module = tiny_llama()
    model = merged_decoder(tmp_path, module)
    report = convert(model, tmp_path / "fused.onnx")
    fused = {k: n for k, n in report.nodes.items() if k.startswith("npu::")}
    assert fused == {name: 2 * n for name, n in DECODER.items()}
    assert report.left == {} and report.without_body == []
    # Those that the branches share are written once, also the joined ones of the gated MLP.
    assert report.files["fused.onnx.data"] < 1.1 * sum(
        4 * parameter.numel() for parameter in module.parameters()
    )
    inline(tmp_path / "fused.onnx", tmp_path / "plain.onnx")
    for rows, tokens, past in ((2, 4, 0), (3, 1, 6), (1, 3, 5)):
        args = arguments(torch.float32, rows, tokens, past)
        if rows > 1 and past:
            args[1][0, :2] = 0
        with torch.no_grad():
            expected = module(*(a.clone() for a in args))
        names = input_names(tmp_path / "past.onnx")
        inputs = {n: a.numpy() for n, a in zip(names, args, strict=True)}
        inputs["use_cache_branch"] = np.array([past > 0])
        for file, provider in (
            *(("fused.onnx", provider) for provider in PROVIDERS),
            ("plain.onnx", PROVIDERS[1]),
        ):
            actual = run(tmp_path / file, provider, inputs)
            for got, wanted in zip(actual, expected, strict=True):
                bound = 1e-4 * wanted.abs().max().item()  # float32 sums in another order
                np.testing.assert_allclose(got, wanted, rtol=0, atol=bound, err_msg=file)


def test_what_branches_keep_is_reported_for_each(tmp_path):
    """Their nodes may have the same names."""
    branches = [
        helper.make_graph(
            [helper.make_node("RMSNormalization", ["x", "w"], [name], name="norm", axis=1)],
            name,
            [],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3, 8])],
        )
        for name in ("a", "b")
    ]
    node = helper.make_node(
        "If", ["flag"], ["y"], name="either", then_branch=branches[0], else_branch=branches[1]
    )
    inputs = {"x": np.ones((2, 3, 8), np.float32), "flag": np.array([True])}
    weights = {"w": np.ones((3, 8), np.float32)}
    model = model_of([node], inputs, {"y": np.float32}, weights, opset=23)
    report = convert(model, tmp_path / "out.onnx")
    reason = "RMSNormalization: its norm spans several axes"
    assert report.left == {
        "either.then_branch/norm": reason,
        "either.else_branch/norm": reason,
    }


@pytest.mark.parametrize("dynamo", [True, False])
def test_encoder_of_torch_onnx(tmp_path, dynamo, caplog):
    """Without dynamo as optimum's files are."""
    torch.manual_seed(3)
    model = transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False).eval()

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    ids, mask = torch.randint(0, 97, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    dynamic = ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO})
    if dynamo:
        stock_export(Encoder(), (ids, mask), dynamic, tmp_path / "stock.onnx", 18)
    else:
        axes = {"ids": {0: "rows", 1: "tokens"}, "mask": {0: "rows", 1: "tokens"}}
        torchscript_export(Encoder(), (ids, mask), axes, tmp_path / "stock.onnx")
    caplog.clear()
    report = convert(tmp_path / "stock.onnx", tmp_path / "fused.onnx")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    fused = {k: n for k, n in report.nodes.items() if k.startswith("npu::")}
    assert fused == {"npu::NPUFusedInferAttentionScore": 2, "npu::NPUGeluV2": 2}
    assert report.left == {}
    with torch.no_grad():
        expected = Encoder()(ids, mask)[mask.bool()]
    names = [
        v.name for v in onnx.load(tmp_path / "fused.onnx", load_external_data=False).graph.input
    ]
    inputs = dict(zip(names, (ids.numpy(), mask.numpy()), strict=True))
    for provider in PROVIDERS:
        (actual,) = run(tmp_path / "fused.onnx", provider, inputs)
        np.testing.assert_allclose(actual[mask.bool()], expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_file_of_transformers_exporters_is_fused_throughout(tmp_path):
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    model = tiny_llama().model
    ids, mask, *_ = arguments(torch.float32, 2, 4, 0)
    mask[0, 0] = 0
    exported = OnnxExporter().export_for_generation(
        model,
        {"input_ids": ids, "attention_mask": mask},
        OnnxConfig(dynamic=True),
        generation_config=transformers.GenerationConfig(),
        multi_token_decode=True,
    )
    exported.save_pretrained(tmp_path)
    report = convert(tmp_path / "decode.onnx", tmp_path / "fused.onnx")
    assert {k: n for k, n in report.nodes.items() if k.startswith("npu::")} == DECODER
    ids, mask, *past = arguments(torch.float32, 2, 3, 5)
    with torch.no_grad():
        expected, *caches = Decoder(model)(ids, mask, *(p.clone() for p in past))
    inputs = {
        "input_ids": ids.numpy(),
        "attention_mask": mask.numpy(),
        "position_ids": np.arange(5, 8)[None].repeat(2, 0),
        **{
            f"input.past_key_values.layers.{i // 2}.{'keys' if i % 2 == 0 else 'values'}": p.numpy()
            for i, p in enumerate(past)
        },
    }
    for provider in PROVIDERS:
        actual = run(tmp_path / "fused.onnx", provider, inputs)
        for got, wanted in zip(actual, [expected, *caches], strict=True):
            bound = 1e-4 * wanted.abs().max().item()  # float32 sums in another order
            np.testing.assert_allclose(got, wanted, rtol=0, atol=bound)


def rms_model(opset=18, op_type="NPURmsNorm", inputs=("x", "gamma")):
    node = helper.make_node(op_type, list(inputs), ["y", "rstd"], domain="npu", epsilon=1e-6)
    x = {"x": np.ones((2, 8), np.float32), "gamma": np.full(8, 2, np.float32)}
    model = model_of([node], x, {"y": np.float32}, opset=opset)
    model.opset_import.append(helper.make_opsetid("npu", 1))
    return model, x


def test_bodies_are_attached_to_files_of_torch_npu():
    model, x = rms_model()
    assert attach_bodies(model) == []
    assert [function.name for function in model.functions] == ["NPURmsNorm"]
    for provider in PROVIDERS:
        np.testing.assert_allclose(run(model, provider, x)[0], 2.0, rtol=1e-5)


def test_inlined_model_is_plain(tmp_path):
    model, x = rms_model()
    before = model.SerializeToString()
    nodes = inline(model, tmp_path / "plain.onnx")
    assert model.SerializeToString() == before
    written = onnx.load(tmp_path / "plain.onnx")
    assert nodes and not written.functions
    assert {o.domain for o in written.opset_import} <= {""}
    np.testing.assert_allclose(run(tmp_path / "plain.onnx", PROVIDERS[1], x)[0], 2.0, rtol=1e-5)


def test_outputs_that_a_node_leaves_out_are_inlined(tmp_path):
    """Files of torch_npu end the outputs of a node with the last that is used."""
    model, x = rms_model()
    del model.graph.node[0].output[1:]
    inline(model, tmp_path / "plain.onnx")
    np.testing.assert_allclose(run(tmp_path / "plain.onnx", PROVIDERS[1], x)[0], 2.0, rtol=1e-5)


def test_node_without_a_body_cannot_be_inlined(tmp_path):
    names = ["q", "k", "v"]
    node = helper.make_node(
        "NPUFusionAttention",
        names,
        ["y", "max", "sum", "out"],
        domain="npu",
        head_num=2,
        input_layout="BNSD",
        keep_prob=0.5,
    )
    inputs = {name: np.ones((1, 2, 4, 8), np.float32) for name in names}
    model = model_of([node], inputs, {"y": np.float32}, opset=18)
    model.opset_import.append(helper.make_opsetid("npu", 1))
    with pytest.raises(UnsupportedError, match="cannot write NPUFusionAttention in ONNX"):
        inline(model, tmp_path / "plain.onnx")
    assert not list(tmp_path.iterdir())


def test_older_opsets_are_raised(tmp_path):
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    x = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    model = model_of([node], x, {"y": np.float32}, {"axes": np.array([1])}, opset=13)
    convert(model, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx").opset_import[0].version >= 18
    np.testing.assert_array_equal(run(tmp_path / "out.onnx", PROVIDERS[0], x)[0], [3, 12])


@pytest.mark.parametrize("function", [convert, inline])
def test_bad_files_are_refused_in_one_line(tmp_path, function):
    out = tmp_path / "out.onnx"
    with pytest.raises(ArgumentError, match="no such file"):
        function(tmp_path / "nowhere.onnx", out)
    with pytest.raises(ArgumentError, match="expected an ONNX file to read, got the directory"):
        function(tmp_path, out)
    model, _ = rms_model()
    for content in (b"", b"no model", model.SerializeToString()[:-20]):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(ExportError) as error:
            function(tmp_path / "bad.onnx", out)
        assert "\n" not in str(error.value)
    onnx.save(model, tmp_path / "good.onnx")
    with pytest.raises(ArgumentError, match="no such directory"):
        function(tmp_path / "good.onnx", tmp_path / "nowhere" / "out.onnx")
    with pytest.raises(ArgumentError, match="another file to write to"):
        function(tmp_path / "good.onnx", tmp_path / "good.onnx")
    assert not out.exists()


@pytest.mark.parametrize("written", ["out.onnx", "out.onnx.data"])
def test_weights_that_are_read_are_not_overwritten(tmp_path, written):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, w = {"x": np.ones((1, 64), np.float32)}, np.ones((64, 64), np.float32)
    model = model_of([node], x, {"y": np.float32}, {"w": w})
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="out.onnx.data")
    before = (tmp_path / "out.onnx.data").read_bytes()
    with pytest.raises(ArgumentError, match="weights are read from"):
        convert(tmp_path / "in.onnx", tmp_path / written)
    assert (tmp_path / "out.onnx.data").read_bytes() == before


def test_missing_weights_are_refused(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, w = {"x": np.ones((1, 64), np.float32)}, np.ones((64, 64), np.float32)
    model = model_of([node], x, {"y": np.float32}, {"w": w})
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="in.data")
    (tmp_path / "in.data").unlink()
    with pytest.raises((OSError, ExportError)):
        convert(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_commands_print_what_was_done(tmp_path, capsys):
    node = helper.make_node("RMSNormalization", ["x", "w"], ["y"], axis=-1)
    other = helper.make_node("RMSNormalization", ["y", "w2"], ["z"], axis=1)
    x = {"x": np.ones((2, 3, 8), np.float32)}
    weights = {"w": np.ones(8, np.float32), "w2": np.ones((3, 8), np.float32)}
    onnx.save(
        model_of([node, other], x, {"z": np.float32}, weights, opset=23), tmp_path / "in.onnx"
    )
    paths = [str(tmp_path / name) for name in ("in.onnx", "fused.onnx", "plain.onnx")]
    assert cli.main(["convert", *paths[:2]]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{paths[1]}: 2 nodes (1 npu::), 0 MiB",
        "converted: RMSNormalization",
        "left as it is: RMSNormalization: its norm spans several axes",
    ]
    assert cli.main(["inline", *paths[1:]]) == 0
    assert capsys.readouterr().out.startswith(f"{paths[2]}: ")
    assert cli.main(["convert", "nowhere.onnx", paths[1]]) == 2
    assert capsys.readouterr().err == "onnxruntime-npu: error: no such file: nowhere.onnx\n"
