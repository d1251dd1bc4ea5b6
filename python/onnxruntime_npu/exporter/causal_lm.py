"""Exports a causal language model with its tokenizer and configuration into a directory."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import nn

from ..context_length import context_length, trained_length
from ..errors import ArgumentError, ExportError
from ..onnx_models.fuse_added_norms import fuse_added_norms
from ..onnx_models.staging import staged, staged_ranks
from ..opdef import torch_library
from . import genai
from .arguments import DTYPES, check_choice, check_directory, check_opset
from .caches import CACHE_DTYPES, CACHES, LOGITS, CacheChoice, Interface
from .checkpoint import Checkpoint, load_checkpoint, wrap
from .division import Division
from .numeric_check import Reference, check_file
from .original import keep_original
from .proof import Findings, NotProven, attempt, unsupported
from .quantization import (
    KEEP,
    NONE,
    calibration_batches,
    check_scheme,
    keep_integers,
    quantize,
    restore_floats,
    schemes,
)
from .quiet_transformers import quiet_transformers
from .recomputed import recompute
from .report import ExportReport
from .sampling_graph import SAMPLER_FILE, write_sampler
from .substitution import substitute
from .switched_adapters import SwitchedAdapters
from .time_mixing import divide_weights
from .tracing import finish, onnx_model_of
from .weights.adapters import merge_adapters
from .weights.lazy_weight import give_back_memory, kept_values
from .whole_model import WholeModelProbe

MODEL_FILE = "model.onnx"
REPORT_FILE = "export_report.json"
# Tokens that a model takes at least whose configuration names no limit; some have tables of a size.
_UNNAMED_CONTEXT = 1024


def export_causal_lm(
    model_or_dir: Any,
    out_dir: str | Path,
    *,
    dtype: str = "float32",
    quant: str = "none",
    cache: str = "dynamic",
    cache_dtype: str = "auto",
    logits: str = "last",
    opset: int | None = None,
    tokenizer: Any | None = None,
    calibration: Iterable[str | Sequence[int]] | None = None,
    static_error: float | None = None,
    inner_precise: int = 0,
    quant_head: bool = False,
    adapters: Sequence[str | Path] = (),
    switched_adapters: Mapping[str, str | Path] | None = None,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    check: bool = True,
) -> ExportReport:
    """Export a causal language model with fused ``npu::`` operators.

    Writes ``model.onnx`` with ``model.onnx.data``, ``sampler.onnx``, the tokenizer,
    ``genai_config.json`` and ``export_report.json``. Every replacement is first proven on
    the given model. Decoders of the Llama family are rebuilt from fused operators; any other is
    exported by its own forward pass, in which attention and proven modules are replaced.

    Args:
        model_or_dir: a directory with config.json and safetensors, a GGUF file or a directory with
            one, or a loaded transformers model (which is left unchanged).
        out_dir: directory to write to; created if it does not exist.
        dtype: float32, float16 or bfloat16, of weights, activations and cache.
        quant: none; keep, the integers of a quantised checkpoint (GPTQ, AWQ, auto-round,
            compressed-tensors, GGUF) as they are; or a scheme of
            ``onnxruntime_npu.converters.quantize_weights``: w8a16, w4a16, w4a8, w8a8 or
            w8a8_dynamic, of projections and experts; the head stays as it is unless ``quant_head``.
            Weights that are multiplied as floats need float16 or bfloat16.
        cache: dynamic (past in, grown present out; the interface of onnxruntime-genai's generator);
            static (a preallocated buffer, updated in place when bound as input and output); or
            paged (blocks and a table of those of each sequence, also updated in place; the
            interface of onnxruntime-genai's engine).
        cache_dtype: auto, that of activations; or int8: keys and values are rounded as they are
            written, with a float32 scale for each token and head, which is cached beside them.
        logits: last (only each row's last token, [B, 1, V]) or all ([B, S, V]). With a paged cache,
            last means the tokens that the input logits_indices names, [n, V].
        opset: ONNX opset, 18 to 23; default 18.
        tokenizer: tokenizer to write with a loaded model.
        calibration: texts, or rows of token ids, from which w8a8 takes the scales of activations,
            w8a8_dynamic factors between these and weights, and for whose activations w4a16 rounds
            weights (2048 tokens at most); by default a text that the package brings, for a model
            with a tokenizer.
        static_error: relative error of a layer's outputs above which w8a8 gives its activations a
            scale per token (see ``quantize_weights``); the report lists these as ``per_token``.
        inner_precise: 1: projections of w8a16, w4a16 and keep round activations to int8, with a
            scale for each group of a row, and multiply integers, which is faster; 0: floats.
        quant_head: with any ``quant`` but none, round the head to int8, with a scale for each
            output, unless keep finds its integers in the checkpoint; an embedding that it shared
            its weight with stays. On one rank.
        adapters: directories of LoRA adapters that peft has saved, to merge into float weights
            before anything else is done.
        switched_adapters: directories of LoRA adapters by names, of which each run may choose one:
            written as ``NAME.onnx_adapter``, for onnxruntime's RunOptions, onnxruntime-genai's
            Adapters and ``CausalLM.generate(adapter=NAME)``.
        tensor_parallel: number of ranks, processes with a part of the model each, that compute it
            together: rank r's files go to ``out_dir/rank_r``. Heads and columns of MLPs are
            divided; embedding, head and experts are on every rank. With ``quant`` none, w8a16,
            w4a16, and in float16 and bfloat16 w8a8 and w8a8_dynamic.
        expert_parallel: number of ranks that the experts of routed MLPs are divided among; as many
            as tensor_parallel, or either of them is 1. With every ``quant``.
        check: run the written file on the NPU and on the CPU and compare it with the eager model in
            float32: logits, greedy continuations and the perplexity of a text. On by default:
            the proofs compare the model before it is traced, rounded and written, and a check takes
            about as long as generating 64 tokens three times. Parts of ranks are not checked.

    Returns the report, of rank 0 if there are several; ``report.gaps`` is empty if every
    replacement was exported as a node, and ``report.check`` has the measured differences: those
    larger than expected are warnings.
    Raises ArgumentError for bad arguments, ExportError for a model that cannot be exported.
    """
    started = time.monotonic()
    check_choice("dtype", dtype, tuple(DTYPES))
    check_choice("quant", quant, schemes())
    check_scheme(quant, DTYPES[dtype], calibration, static_error, inner_precise, quant_head)
    check_choice("cache", cache, CACHES)
    check_choice("cache_dtype", cache_dtype, CACHE_DTYPES)
    check_choice("logits", logits, LOGITS)
    if cache == "paged" and logits == "all":
        raise ArgumentError(
            "expected logits='last' with cache='paged', got 'all': name all tokens in the input "
            "logits_indices"
        )
    if isinstance(adapters, (str, Path)):
        raise ArgumentError(f"expected adapters to be a sequence of directories, got {adapters!r}")
    division = Division(tensor_parallel, expert_parallel)
    division.check_options(quant, DTYPES[dtype], len(switched_adapters or {}))
    if quant_head and division.ranks > 1:
        raise ArgumentError("expected quant_head on one rank, got several ranks")
    opset = check_opset(opset)
    out = check_directory(out_dir, model_or_dir)
    if isinstance(model_or_dir, nn.Module):
        checkpoint = wrap(model_or_dir, tokenizer)
    else:
        checkpoint = load_checkpoint(model_or_dir, integers=quant == KEEP)
    merge_adapters(checkpoint.model, adapters)
    switched = SwitchedAdapters(checkpoint.model, switched_adapters or {})
    report = ExportReport(
        model=checkpoint.source,
        architecture=type(checkpoint.model).__name__,
        dtype=dtype,
        opset=opset,
        cache=cache,
        cache_dtype=cache_dtype,
        logits=logits,
        quant=quant,
        inner_precise=inner_precise,
        quant_head=quant_head,
        adapters=[str(adapter) for adapter in adapters],
        tensor_parallel=tensor_parallel,
        expert_parallel=expert_parallel,
        warnings=list(checkpoint.warnings),
    )
    if checkpoint.cache and cache_dtype != "int8":
        report.warnings.append(
            f"the checkpoint's {checkpoint.cache} is left out: keys and values are cached as "
            f"{dtype}; cache_dtype='int8' (--kv-dtype int8) rounds them"
        )
    wanted = CacheChoice(cache, cache_dtype == "int8", logits)
    probe = _probe(checkpoint.model)
    # Before the proofs take the model apart; its results are kept, not the model.
    whole = division.ranks == 1
    reference = _reference(checkpoint, report) if check and whole else None
    interface, findings = _interface(checkpoint, probe, wanted, opset, report)
    division.check(interface.decoder)
    switched.prove(
        checkpoint.model,
        interface.decoder,
        lambda model, decoder: attempt(WholeModelProbe, model).proven(decoder, wanted, Findings()),
    )
    give_back_memory()
    interface.decoder.convert(DTYPES[dtype])
    options: dict[str, Any] = {"inner_precise": inner_precise, "quant_head": quant_head}
    if quant == KEEP:
        options |= {"head": checkpoint.model.get_output_embeddings(), "ranks": division.ranks}
        report.integers = keep_integers(interface, checkpoint.left, findings, **options)
    elif quant == NONE:
        if restore_floats(interface) and checkpoint.quantization:
            report.warnings.append(
                f"the {checkpoint.quantization} checkpoint's integers are exported as {dtype}: "
                f"quant='keep' exports them as they are"
            )
    else:
        context = trained_length(checkpoint.model.config) or 2**31
        batches = calibration_batches(interface, checkpoint.tokenizer, quant, calibration, context)
        if static_error is not None:
            options["static_error"] = static_error
        report.per_token = quantize(interface, quant, batches, findings, **options)
    if not whole:
        return _write_ranks(out, division, checkpoint, interface, wanted, report, findings, started)
    switched.insert(interface.decoder)
    with staged(out, MODEL_FILE) as folder:
        model = _onnx_model(interface, opset, checkpoint.model.config)
        switched.open(model.graph)
        report.switched_adapters = switched.write(folder, DTYPES[dtype])
        _write(folder, model, checkpoint, interface, report, findings)
        report.exported(started)
        report.write(folder / REPORT_FILE)
        if reference is not None:
            layers = interface.layer_count
            # A session has the weights again; the traced program refers to itself in cycles.
            del model, interface, checkpoint
            gc.collect()
            report.checked(*check_file(folder, reference, report, layers))
            report.write(folder / REPORT_FILE)
    return report


def _reference(checkpoint: Checkpoint, report: ExportReport) -> Reference | None:
    try:
        with kept_values(), quiet_transformers():  # of kernels for other devices to install
            return attempt(Reference.of, checkpoint.model, checkpoint.tokenizer)
    except NotProven as error:
        report.warnings.append(f"no check of the file: the eager model cannot generate: {error}")
        return None


def _probe(model: Any) -> WholeModelProbe:
    """Return the model's logits of some tokens, or refuse a model that has none."""
    if not hasattr(getattr(model, "config", None), "model_type"):
        raise ExportError(
            f"cannot export {type(model).__name__}: expected a transformers causal language model"
        )
    torch_library.register()
    divide_weights(model)
    if getattr(model.config, "output_router_logits", False):
        # For training: the loss of routers takes a mask of new tokens alone, which a cache has not.
        model.config.output_router_logits = False
    try:
        with quiet_transformers():
            return attempt(WholeModelProbe, model)
    except NotProven as error:
        raise unsupported(model, f"expected logits from input_ids alone: {error}") from error


def _interface(
    checkpoint: Checkpoint,
    probe: WholeModelProbe,
    wanted: CacheChoice,
    opset: int,
    report: ExportReport,
) -> tuple[Interface, Findings]:
    """Return the proven float32 model with the requested inputs and outputs."""
    model = checkpoint.model
    try:
        decoder, findings = substitute(model)
        give_back_memory()
        return probe.proven(decoder, wanted, findings), findings
    except NotProven as error:
        reason = error
    try:
        with quiet_transformers():
            original, findings = keep_original(
                copy.deepcopy(model), reason, opset, floats=report.quant == NONE
            )
            return probe.proven(original, wanted, findings), findings
    except NotProven as error:
        own = error
    if not wanted.plain:
        # Refused as well, with its own reason, where a growing cache is no way out.
        plain = CacheChoice("dynamic", int8=False, logits=wanted.logits)
        _interface(checkpoint, probe, plain, opset, report)
        why = (
            f"{reason}; nor by its own forward pass with a {wanted} cache: {own}: pass "
            f"cache='dynamic' and cache_dtype='auto'"
        )
        raise unsupported(model, why)
    try:
        with quiet_transformers():
            probe.check_causal(model)
            recomputing, findings = recompute(copy.deepcopy(model), own, opset)
            interface = probe.proven(recomputing, wanted, findings)
    except NotProven as error:
        why = f"{reason}; nor by its own forward pass: {own}; nor without a cache: {error}"
        raise unsupported(model, why) from error
    report.warnings.append(f"every step runs all tokens of a row again, without a cache: {own}")
    return interface, findings


def _onnx_model(interface: Interface, opset: int, config: Any) -> ir.Model:
    """Trace, translate and tidy up; the ``npu::`` nodes have no bodies yet."""
    model = onnx_model_of(
        interface,
        interface.example(),
        opset,
        listed_from=len(interface.leading_inputs),
        dtype=interface.decoder.dtype,
        longest=context_length(config.get_text_config().to_dict()) or _UNNAMED_CONTEXT,
    )
    model.metadata_props["onnxruntime_npu.cache"] = interface.cache
    return model


def _write(
    folder: Path,
    model: ir.Model,
    checkpoint: Checkpoint,
    interface: Interface,
    report: ExportReport,
    findings: Findings,
) -> None:
    """Write the model and the files beside it, but for the report."""
    findings.joined(fuse_added_norms(model.graph), "npu_rms_norm", into="npu_add_rms_norm")
    _save_companions(folder, checkpoint, interface, report)
    write_sampler(folder / SAMPLER_FILE)
    finish(model, folder / MODEL_FILE, report, findings)


def _write_ranks(
    out: Path,
    division: Division,
    checkpoint: Checkpoint,
    whole: Interface,
    wanted: CacheChoice,
    report: ExportReport,
    findings: Findings,
    started: float,
) -> ExportReport:
    """Write a directory for each rank, all of them or none; return the first one's report."""
    reports = []
    with staged_ranks(out, division.ranks, MODEL_FILE) as folders:
        for rank, folder in enumerate(folders):
            own, found = copy.deepcopy((report, findings))
            own.rank, own.group = rank, division.group
            decoder = division.part_of(whole.decoder, rank, found)
            interface = wanted.interface(decoder).eval()
            model = _onnx_model(interface, report.opset, checkpoint.model.config)
            _write(folder, model, checkpoint, interface, own, found)
            own.exported(started)
            own.write(folder / REPORT_FILE)
            reports.append(own)
    return reports[0]


def _save_companions(
    out: Path, checkpoint: Checkpoint, interface: Interface, report: ExportReport
) -> None:
    """Write the files that a runner needs in addition to the model."""
    model = checkpoint.model
    generation = getattr(model, "generation_config", None)
    model.config.save_pretrained(out)
    if generation is not None:
        generation.save_pretrained(out)
    if checkpoint.tokenizer is None:
        report.warnings.append(checkpoint.without_tokenizer)
    else:
        checkpoint.tokenizer.save_pretrained(out)
    obstacle = genai.obstacle(interface)
    if report.rank is not None and interface.cache != "paged":  # which the server starts ranks of
        obstacle = (
            "onnxruntime-genai does not start ranks, and the server starts those of a paged cache: "
            "export with --cache paged to serve the model"
        )
    if obstacle is None:
        genai.write_config(out / "genai_config.json", model.config, generation, interface)
    else:
        report.warnings.append(f"no genai_config.json: {obstacle}")
