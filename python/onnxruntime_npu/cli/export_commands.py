"""``export`` and its siblings for encoders, encoder-decoders and models of images."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..exporter.architectures import supported
from .arguments import DTYPES, Commands, choice, number_of_ranks, path

if TYPE_CHECKING:
    from ..exporter.parts_report import PartsReport
    from ..exporter.report import ExportReport

_QUANTS = ("none", "keep", "w8a16", "w4a16", "w4a8", "w8a8", "w8a8_dynamic")
_QUANTS_UNCALIBRATED = ("none", "w8a16", "w4a16", "w4a8", "w8a8_dynamic")
_CACHES = ("dynamic", "static", "paged")
_KV_DTYPES = ("auto", "int8")
_NAMED = re.compile(r"[\w.-]+=")  # an adapter's directory after its name
_POOLINGS = ("auto", "none", "mean", "cls", "max", "lasttoken", "pooler")


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    _add_export(commands)
    _add_export_encoder(commands)
    _add_export_seq2seq(commands)
    _add_export_image_text(commands)


def _add_export(commands: Commands) -> None:
    export = commands.add_parser(
        "export",
        help="a Hugging Face model directory to ONNX with npu:: operators",
        description="Export a causal language model to OUT_DIR/model.onnx with its tokenizer and "
        f"export_report.json. Rebuilt from fused operators are {supported()}; others are "
        "exported by their own forward pass, with attention and proven modules replaced.",
    )
    _add_paths(export, "directory with safetensors or GGUF, or a GGUF file")
    choice(export, "--dtype", DTYPES, "of weights, activations and cache")
    choice(
        export,
        "--quant",
        _QUANTS,
        "bits of weights and activations; keep: the integers of a GPTQ, AWQ, auto-round, "
        "compressed-tensors or GGUF checkpoint as they are",
    )
    export.add_argument(
        "--calibration",
        metavar="FILE",
        help="texts for --quant w8a8, w8a8_dynamic or w4a16, one on each line",
    )
    export.add_argument(
        "--static-error",
        type=float,
        metavar="E",
        help="relative error of a layer's outputs above which --quant w8a8 gives it a scale per "
        "token (default: 0.03)",
    )
    export.add_argument(
        "--inner-precise",
        type=int,
        choices=(0, 1),
        default=0,
        help="1: --quant w8a16, w4a16 and keep round activations to int8 inside the operators, "
        "which is faster (default: 0)",
    )
    export.add_argument(
        "--quant-head", action="store_true", help="round the head to int8, too, with --quant"
    )
    export.add_argument(
        "--adapter",
        metavar="[NAME=]DIR",
        action="append",
        default=[],
        dest="adapters",
        help="LoRA adapter of peft to merge or, with a name, one that each run may choose; may be "
        "given several times",
    )
    choice(
        export,
        "--cache",
        _CACHES,
        "dynamic: grows; static: preallocated, updated in place; paged: blocks, for continuous "
        "batching",
    )
    choice(
        export,
        "--kv-dtype",
        _KV_DTYPES,
        "of the cache; auto: that of activations; int8: with a scale for each token and head",
    )
    number_of_ranks(
        export,
        "--tensor-parallel",
        "divide the model among N ranks: OUT_DIR/rank_0 and so on, for --ranks N",
    )
    number_of_ranks(
        export,
        "--expert-parallel",
        "divide the experts of routed MLPs among N ranks, those of --tensor-parallel if given",
    )
    choice(export, "--logits", ("last", "all"), "of the last token of each row, or of all tokens")
    export.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare the written file with the eager model: logits, greedy tokens, perplexity "
        "(default: --check)",
    )
    _add_opset(export)
    export.set_defaults(run=_export)


def _add_export_encoder(commands: Commands) -> None:
    encoder = commands.add_parser(
        "export-encoder",
        help="an encoder of text, images or sound to ONNX with npu:: operators",
        description="Export an encoder such as BERT, MiniLM or CLIP's vision tower to "
        "OUT_DIR/model.onnx with its tokenizer and export_report.json.",
    )
    _add_paths(encoder, "directory with safetensors")
    choice(encoder, "--dtype", DTYPES, "of weights and activations")
    choice(encoder, "--quant", _QUANTS_UNCALIBRATED, "bits of weights and activations")
    choice(
        encoder,
        "--pooling",
        _POOLINGS,
        "of a text's tokens to one vector; auto: as the directory's sentence-transformers files "
        "ask, else mean",
    )
    encoder.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="give vectors length 1 (default: as the directory asks)",
    )
    encoder.add_argument(
        "--tower", choices=("text", "image"), help="of a model such as CLIP that has both"
    )
    _add_opset(encoder)
    encoder.set_defaults(run=_export_encoder)


def _add_export_seq2seq(commands: Commands) -> None:
    seq2seq = commands.add_parser(
        "export-seq2seq",
        help="an encoder-decoder of text or sound to ONNX with npu:: operators",
        description="Export an encoder-decoder such as T5, BART, Marian or Whisper to "
        "OUT_DIR/encoder_model.onnx and OUT_DIR/decoder_model.onnx with its tokenizer and "
        "export_report.json.",
    )
    _add_paths(seq2seq, "directory with safetensors")
    choice(seq2seq, "--dtype", DTYPES, "of weights, activations and caches")
    _add_cache_of_rows(seq2seq, "of the decoder's own tokens")
    choice(seq2seq, "--quant", _QUANTS_UNCALIBRATED, "bits of weights and activations")
    _add_opset(seq2seq)
    seq2seq.set_defaults(run=_export_seq2seq)


def _add_export_image_text(commands: Commands) -> None:
    image_text = commands.add_parser(
        "export-image-text-to-text",
        help="a model of images and text to ONNX with npu:: operators",
        description="Export a model such as LLaVA to OUT_DIR/vision.onnx, embedding.onnx and "
        "text.onnx with its tokenizer and export_report.json.",
    )
    _add_paths(image_text, "directory with safetensors")
    choice(image_text, "--dtype", DTYPES, "of weights, activations and caches")
    _add_cache_of_rows(image_text, "of the text")
    choice(image_text, "--quant", _QUANTS_UNCALIBRATED, "bits of the text's weights, activations")
    _add_opset(image_text)
    image_text.set_defaults(run=_export_image_text)


def _add_cache_of_rows(parser: argparse.ArgumentParser, of: str) -> None:
    parser.add_argument(
        "--cache",
        default="dynamic",
        metavar="{dynamic,static}",  # the export refuses others, and says why
        help=f"{of}; dynamic: grows; static: preallocated, updated in place (default: dynamic)",
    )


def _add_paths(parser: argparse.ArgumentParser, source: str) -> None:
    parser.add_argument("model_dir", type=path, metavar="MODEL_DIR", help=source)
    parser.add_argument("out_dir", type=path, metavar="OUT_DIR", help="directory to write to")


def _add_opset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--opset", type=int, help="ONNX opset, 18 to 23 (default: 18)")


def _export(arguments: argparse.Namespace) -> None:
    from ..exporter import export_causal_lm

    report = export_causal_lm(
        arguments.model_dir,
        arguments.out_dir,
        dtype=arguments.dtype,
        quant=arguments.quant,
        calibration=_lines(arguments.calibration),
        static_error=arguments.static_error,
        inner_precise=arguments.inner_precise,
        quant_head=arguments.quant_head,
        adapters=[text for text in arguments.adapters if not _NAMED.match(text)],
        switched_adapters=_named(arguments.adapters),
        cache=arguments.cache,
        cache_dtype=arguments.kv_dtype,
        logits=arguments.logits,
        opset=arguments.opset,
        tensor_parallel=arguments.tensor_parallel,
        expert_parallel=arguments.expert_parallel,
        check=arguments.check,
    )
    elements = "" if report.cache_dtype == "auto" else f" {report.cache_dtype}"
    _print_report(arguments.out_dir, report, f"cache {report.cache}{elements}")


def _named(adapters: Sequence[str]) -> dict[str, str]:
    """Return the directories of those adapters that have a name, by it."""
    named: dict[str, str] = {}
    for text in adapters:
        if _NAMED.match(text):
            name, directory = text.split("=", 1)
            if name in named:
                raise ArgumentError(f"--adapter expected names of their own, got {name} twice")
            named[name] = directory
    return named


def _export_encoder(arguments: argparse.Namespace) -> None:
    from ..exporter import export_encoder

    report = export_encoder(
        arguments.model_dir,
        arguments.out_dir,
        dtype=arguments.dtype,
        pooling=arguments.pooling,
        normalize=arguments.normalize,
        tower=arguments.tower,
        quant=arguments.quant,
        opset=arguments.opset,
    )
    _print_report(arguments.out_dir, report, f"pooling {report.pooling}")


def _export_seq2seq(arguments: argparse.Namespace) -> None:
    from ..exporter import export_seq2seq

    _print_parts(
        arguments.out_dir,
        export_seq2seq(
            arguments.model_dir,
            arguments.out_dir,
            dtype=arguments.dtype,
            cache=arguments.cache,
            quant=arguments.quant,
            opset=arguments.opset,
        ),
    )


def _export_image_text(arguments: argparse.Namespace) -> None:
    from ..exporter import export_image_text_to_text

    _print_parts(
        arguments.out_dir,
        export_image_text_to_text(
            arguments.model_dir,
            arguments.out_dir,
            dtype=arguments.dtype,
            quant=arguments.quant,
            cache=arguments.cache,
            opset=arguments.opset,
        ),
    )


def _print_parts(out_dir: str, report: PartsReport) -> None:
    for name, part in report.parts.items():
        _print_report(str(Path(out_dir) / name), part)


def _print_report(place: str, report: ExportReport, form: str | None = None) -> None:
    fused = sum(count for name, count in report.nodes.items() if name.startswith("npu::"))
    size = sum(report.files.values()) / 2**20
    print(
        f"{place}: {report.architecture}, {report.dtype}, {f'{form}, ' if form else ''}"
        f"{report.node_count} nodes ({fused} npu::), {size:.0f} MiB, {report.seconds:.0f} s, "
        f"peak memory {report.peak_memory / 2**20:.0f} MiB"
    )
    for layout, count in report.integers.items():
        print(f"integers of the checkpoint: {layout} ({count} projections)")
    if report.per_token:
        kinds = ", ".join(sorted({name.rpartition(".")[2] for name in report.per_token}))
        print(f"activations with a scale per token: {len(report.per_token)} layers ({kinds})")
    if replaced := report.replaced_by_operator():
        print(f"replaced: {replaced}")
    for line in report.kept_by_role():
        print(f"kept as it is: {line}")
    for line in report.check_lines():
        print(f"check: {line}")
    for warning in [*report.gaps, *report.warnings]:
        print(f"warning: {warning}", file=sys.stderr)


def _lines(path: str | None) -> list[str] | None:
    """Return the lines of a file that have text."""
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ArgumentError(f"no such file: {path}") from None
    except UnicodeDecodeError as error:
        raise ArgumentError(f"expected text in UTF-8, got other bytes in {path}") from error
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line]
