"""The ``onnxruntime-npu`` command.

Exit codes: 0 success, 2 bad arguments, 1 any other failure; failures print one line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import secrets
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import ArgumentError, ExportError, ServingError, UnsupportedError
from .exporter.architectures import supported

if TYPE_CHECKING:
    from .exporter.parts_report import PartsReport
    from .exporter.report import ExportReport

_PROGRAM = "onnxruntime-npu"
_DTYPES = ("float32", "float16", "bfloat16")
_QUANTS = ("none", "keep", "w8a16", "w4a16", "w4a8", "w8a8", "w8a8_dynamic")
_QUANTS_UNCALIBRATED = ("none", "w8a16", "w4a16", "w4a8", "w8a8_dynamic")
_CACHES = ("dynamic", "static", "paged")
_KV_DTYPES = ("auto", "int8")
_RANKS = "start N processes, for a model exported with --tensor-parallel N or --expert-parallel N"
_PROVIDERS = {"npu": "NPUExecutionProvider", "cpu": "CPUExecutionProvider"}
_API_KEY = "ORT_NPU_API_KEY"  # not an argument: other users of a machine can read those
_NAMED = re.compile(r"[\w.-]+=")  # an adapter's directory after its name
_POOLINGS = ("auto", "none", "mean", "cls", "max", "lasttoken", "pooler")
# For models whose generation_config.json has no sampling parameters.
_TEMPERATURE, _TOP_K, _TOP_P = 0.7, 50, 0.95


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    arguments.argv = list(sys.argv[1:] if argv is None else argv)
    try:
        with _stopped_by_sigterm():
            code = arguments.run(arguments) or 0
        sys.stdout.flush()
    except ArgumentError as error:
        return _fail(2, error)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    except _Terminated:
        return _fail(143, "terminated")
    except (
        ExportError,
        ServingError,
        UnsupportedError,
        ImportError,
        OSError,
        MemoryError,
    ) as error:
        return _fail(1, error)
    except Exception as error:
        # onnxruntime's exceptions have no common base class.
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        return _fail(1, error)
    return code


class _Terminated(BaseException):
    """SIGTERM was received."""


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a command as an interruption does, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # others cannot handle signals
        return

    def stop(_number: int, _frame: object) -> None:
        raise _Terminated

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _fail(code: int, reason: object) -> int:
    text = " ".join(str(reason).split()) or type(reason).__name__
    print(f"{_PROGRAM}: error: {text}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the error in one line instead of the usage."""
        print(f"{self.prog}: error: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROGRAM, description="Export, run and inspect models on the NPU.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    info = commands.add_parser("info", help="versions, devices, ISA, provider library, operators")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)

    ops = commands.add_parser("ops", help="every npu:: operator")
    ops.add_argument("--json", action="store_true", help="print JSON")
    ops.set_defaults(run=_ops)

    export = commands.add_parser(
        "export",
        help="a Hugging Face model directory to ONNX with npu:: operators",
        description="Export a causal language model to OUT_DIR/model.onnx with its tokenizer and "
        f"export_report.json. Rebuilt from fused operators are {supported()}; others are "
        "exported by their own forward pass, with attention and proven modules replaced.",
    )
    export.add_argument(
        "model_dir", metavar="MODEL_DIR", help="directory with safetensors or GGUF, or a GGUF file"
    )
    export.add_argument("out_dir", metavar="OUT_DIR", help="directory to write to")
    _choice(export, "--dtype", _DTYPES, "of weights, activations and cache")
    _choice(
        export,
        "--quant",
        _QUANTS,
        "bits of weights and activations; keep: the integers of a GPTQ, AWQ, compressed-tensors or "
        "GGUF checkpoint as they are",
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
        "--adapter",
        metavar="[NAME=]DIR",
        action="append",
        default=[],
        dest="adapters",
        help="LoRA adapter of peft to merge or, with a name, one that each run may choose; may be "
        "given several times",
    )
    _choice(
        export,
        "--cache",
        _CACHES,
        "dynamic: grows; static: preallocated, updated in place; paged: blocks, for continuous "
        "batching",
    )
    _choice(
        export,
        "--kv-dtype",
        _KV_DTYPES,
        "of the cache; auto: that of activations; int8: with a scale for each token and head",
    )
    _number_of_ranks(
        export,
        "--tensor-parallel",
        "divide the model among N ranks: OUT_DIR/rank_0 and so on, for --ranks N",
    )
    _number_of_ranks(
        export,
        "--expert-parallel",
        "divide the experts of routed MLPs among N ranks, those of --tensor-parallel if given",
    )
    _choice(export, "--logits", ("last", "all"), "of the last token of each row, or of all tokens")
    export.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare the written file with the eager model: logits, greedy tokens, perplexity",
    )
    export.add_argument("--opset", type=int, help="ONNX opset, 18 to 23 (default: 18)")
    export.set_defaults(run=_export)

    encoder = commands.add_parser(
        "export-encoder",
        help="an encoder of text, images or sound to ONNX with npu:: operators",
        description="Export an encoder such as BERT, MiniLM or CLIP's vision tower to "
        "OUT_DIR/model.onnx with its tokenizer and export_report.json.",
    )
    encoder.add_argument("model_dir", metavar="MODEL_DIR", help="directory with safetensors")
    encoder.add_argument("out_dir", metavar="OUT_DIR", help="directory to write to")
    _choice(encoder, "--dtype", _DTYPES, "of weights and activations")
    _choice(encoder, "--quant", _QUANTS_UNCALIBRATED, "bits of weights and activations")
    _choice(
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
    encoder.add_argument("--opset", type=int, help="ONNX opset, 18 to 23 (default: 18)")
    encoder.set_defaults(run=_export_encoder)

    seq2seq = commands.add_parser(
        "export-seq2seq",
        help="an encoder-decoder of text or sound to ONNX with npu:: operators",
        description="Export an encoder-decoder such as T5, BART, Marian or Whisper to "
        "OUT_DIR/encoder_model.onnx and OUT_DIR/decoder_model.onnx with its tokenizer and "
        "export_report.json.",
    )
    seq2seq.add_argument("model_dir", metavar="MODEL_DIR", help="directory with safetensors")
    seq2seq.add_argument("out_dir", metavar="OUT_DIR", help="directory to write to")
    _choice(seq2seq, "--dtype", _DTYPES, "of weights, activations and caches")
    _choice(seq2seq, "--quant", _QUANTS_UNCALIBRATED, "bits of weights and activations")
    seq2seq.add_argument("--opset", type=int, help="ONNX opset, 18 to 23 (default: 18)")
    seq2seq.set_defaults(run=_export_seq2seq)

    image_text = commands.add_parser(
        "export-image-text-to-text",
        help="a model of images and text to ONNX with npu:: operators",
        description="Export a model such as LLaVA to OUT_DIR/vision.onnx, embedding.onnx and "
        "text.onnx with its tokenizer and export_report.json.",
    )
    image_text.add_argument("model_dir", metavar="MODEL_DIR", help="directory with safetensors")
    image_text.add_argument("out_dir", metavar="OUT_DIR", help="directory to write to")
    _choice(image_text, "--dtype", _DTYPES, "of weights, activations and caches")
    image_text.add_argument("--opset", type=int, help="ONNX opset, 18 to 23 (default: 18)")
    image_text.set_defaults(run=_export_image_text)

    convert = commands.add_parser(
        "convert",
        help="an ONNX file of another exporter to npu:: operators",
        description="Rewrite norms, rotary embeddings, attention, gated MLPs, GELU and 4-bit "
        "matmuls of an ONNX file (of torch.onnx, transformers, optimum or onnxruntime-genai) into "
        "npu:: operators with function bodies.",
    )
    convert.add_argument("source", metavar="IN", help="ONNX file")
    convert.add_argument("target", metavar="OUT", help="file to write; weights go to OUT.data")
    convert.set_defaults(run=_convert)

    inline = commands.add_parser(
        "inline",
        help="an ONNX file with npu:: operators to plain ONNX",
        description="Replace every npu:: node by its function body, for any other runtime.",
    )
    inline.add_argument("source", metavar="IN", help="ONNX file")
    inline.add_argument("target", metavar="OUT", help="file to write; weights go to OUT.data")
    inline.set_defaults(run=_inline)

    generate = commands.add_parser(
        "generate",
        help="text from an exported model, streamed",
        description="Generate text with an exported model. Without --greedy the next token is "
        "sampled as the model's generation_config.json says, else with temperature "
        f"{_TEMPERATURE}, top-k {_TOP_K}, top-p {_TOP_P}.",
    )
    generate.add_argument(
        "model_dir", metavar="OUT_DIR", help="what `export` or `export-seq2seq` wrote"
    )
    generate.add_argument("--prompt", required=True, help="text to answer, continue or translate")
    generate.add_argument(
        "--max-new-tokens", type=int, default=256, metavar="N", help="default 256"
    )
    generate.add_argument("--greedy", action="store_true", help="take the most likely token")
    generate.add_argument("--temperature", type=float, help="0 is greedy")
    generate.add_argument("--top-k", type=int, help="sample among the K most likely; 0: all")
    generate.add_argument("--top-p", type=float, help="sample within the most likely mass P")
    generate.add_argument("--seed", type=int, help="makes sampling repeatable")
    generate.add_argument("--adapter", metavar="NAME", help="LoRA adapter exported with the model")
    generate.add_argument("--raw", action="store_true", help="no chat template")
    _choice(generate, "--provider", tuple(_PROVIDERS), "execution provider")
    _number_of_ranks(generate, "--ranks", _RANKS)
    generate.add_argument("--stats", action="store_true", help="print speed to stderr")
    generate.set_defaults(run=_generate)

    serve = commands.add_parser(
        "serve",
        help="an OpenAI-compatible service for exported models",
        description="Serve a model exported with --cache paged (/v1/chat/completions, "
        "/v1/completions) or an exported encoder (/v1/embeddings), with /v1/models, /tokenize, "
        f"/health, /ready and /metrics. With the environment variable {_API_KEY} set, clients have "
        "to send its value as their API key.",
    )
    serve.add_argument(
        "model_dir", metavar="OUT_DIR", help="what `export --cache paged` or `export-encoder` wrote"
    )
    serve.add_argument(
        "--embeddings", metavar="DIR", help="also serve this exported encoder: /v1/embeddings"
    )
    serve.add_argument("--host", default="127.0.0.1", help="to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, help="default 8000; 0: any free one")
    serve.add_argument("--name", help="the model's name for clients (default: the directory's)")
    serve.add_argument(
        "--max-queue",
        type=_whole,
        default=256,
        metavar="N",
        help="requests that may wait, beyond those of a full batch (default: 256)",
    )
    serve.add_argument(
        "--deadline",
        type=_seconds,
        default=600,
        metavar="SECONDS",
        help="for a request, from its arrival to its last token (default: 600)",
    )
    serve.add_argument(
        "--max-body",
        type=_whole,
        default=4 * 2**20,
        metavar="BYTES",
        help="size of a request (default: 4 MiB)",
    )
    serve.add_argument(
        "--ssl-certfile", metavar="PEM", help="certificate, with which the server speaks HTTPS"
    )
    serve.add_argument(
        "--ssl-keyfile",
        metavar="PEM",
        help="its private key, without a passphrase (default: in the certificate's file)",
    )
    serve.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web page that may call the service; repeat for several, * for all",
    )
    _choice(serve, "--provider", tuple(_PROVIDERS), "execution provider")
    serve.add_argument(
        "--device", type=_whole, default=0, metavar="N", help="index of the NPU (default: 0)"
    )
    _number_of_ranks(serve, "--ranks", _RANKS)
    serve.set_defaults(run=_serve)

    run = commands.add_parser(
        "run",
        help="a script of torch_npu or CUDA, unmodified, on the NPU",
        description="Run a Python script whose `import torch_npu` finds this package.",
    )
    run.add_argument("--cuda", action="store_true", help="what it does on CUDA happens on npu")
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    run.add_argument("script", metavar="SCRIPT", help="file, or module with -m")
    run.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="the script's own")
    run.set_defaults(run=_run)
    return parser


def _choice(
    parser: argparse.ArgumentParser, flag: str, choices: tuple[str, ...], meaning: str
) -> None:
    parser.add_argument(
        flag,
        choices=choices,
        default=choices[0],
        help=f"{meaning}: {', '.join(choices)} (default: {choices[0]})",
    )


def _number_of_ranks(parser: argparse.ArgumentParser, flag: str, meaning: str) -> None:
    parser.add_argument(flag, type=_ranks, default=1, metavar="N", help=meaning)


def _info(arguments: argparse.Namespace) -> None:
    import onnxruntime

    from . import _C, __version__, get_ep_name, get_library_path

    devices = [
        {"id": i, **_C.device_properties(i), "memory_limit": _C.memory_limit(i)}
        for i in range(_C.device_count())
    ]
    kernels = _C.registered_ops()
    fused = sorted(k["type"] for k in kernels if k["domain"] == "npu")
    standard = sorted({k["type"] for k in kernels if k["domain"] == ""})
    facts: dict[str, Any] = {
        "onnxruntime_npu": __version__,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "provider": get_ep_name(),
        "library": get_library_path(),
        "isa": _C.isa(),
        "cpu_features": sorted(name for name, present in _C.cpu_features().items() if present),
        "threads": _C.num_threads(),
        "devices": devices,
        "npu_operators": fused,
        "onnx_operators": standard,
    }
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return
    for name in ("onnxruntime_npu", "onnxruntime", "python", "provider", "library", "isa"):
        print(f"{name:16} {facts[name]}")
    print(f"{'cpu features':16} {' '.join(facts['cpu_features'])}")
    print(f"{'threads':16} {facts['threads']}")
    for device in devices:
        print(
            f"{'device ' + str(device['id']):16} {device['name']}, "
            f"{device['compute_units']} compute units, {device['memory_limit'] / 2**30:.1f} GiB"
        )
    print(f"{'npu operators':16} {len(fused)} (onnxruntime-npu ops)")
    print(f"{'onnx operators':16} {len(standard)}: {' '.join(standard)}")


def _ops(arguments: argparse.Namespace) -> None:
    from .opdef.table import composition_table, op_table, portability

    rows, compositions = op_table(), composition_table()
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        first: list[str] = row["inputs"][0]["dtypes"] if row["inputs"] else []
        body = f"function body: {portability(row)}"
        print(f"{row['schema']}\n    npu::{row['onnx_type']}; {', '.join(first)}; {body}")
    for row in compositions:
        print(f"{row['schema']}\n    standard operators")
    print(f"{len(rows)} operators, and {len(compositions)} that consist of standard ones")


def _export(arguments: argparse.Namespace) -> None:
    from .exporter import export_causal_lm

    report = export_causal_lm(
        arguments.model_dir,
        arguments.out_dir,
        dtype=arguments.dtype,
        quant=arguments.quant,
        calibration=_lines(arguments.calibration),
        static_error=arguments.static_error,
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
    from .exporter import export_encoder

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
    from .exporter import export_seq2seq

    _print_parts(
        arguments.out_dir,
        export_seq2seq(
            arguments.model_dir,
            arguments.out_dir,
            dtype=arguments.dtype,
            quant=arguments.quant,
            opset=arguments.opset,
        ),
    )


def _export_image_text(arguments: argparse.Namespace) -> None:
    from .exporter import export_image_text_to_text

    _print_parts(
        arguments.out_dir,
        export_image_text_to_text(
            arguments.model_dir, arguments.out_dir, dtype=arguments.dtype, opset=arguments.opset
        ),
    )


def _print_parts(out_dir: str, report: PartsReport) -> None:
    for name, part in report.parts.items():
        _print_report(str(Path(out_dir) / name), part)


def _convert(arguments: argparse.Namespace) -> None:
    from .converters import convert

    report = convert(arguments.source, arguments.target)
    fused = sum(count for name, count in report.nodes.items() if name.startswith("npu::"))
    size = sum(report.files.values()) / 2**20
    print(f"{arguments.target}: {sum(report.nodes.values())} nodes ({fused} npu::), {size:.0f} MiB")
    for rule, count in report.converted.items():
        print(f"converted: {rule}{f' ({count} times)' if count > 1 else ''}")
    for reason, count in Counter(report.left.values()).items():
        print(f"left as it is: {reason}{f' ({count} times)' if count > 1 else ''}")


def _inline(arguments: argparse.Namespace) -> None:
    from .converters import inline

    nodes = inline(arguments.source, arguments.target)
    print(f"{arguments.target}: {sum(nodes.values())} nodes")


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
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line]


def _generate(arguments: argparse.Namespace) -> int | None:
    from .generation import CausalLM, Seq2SeqLM, ranks

    rank = ranks.rank_of_process()
    if arguments.ranks > 1 and rank is None:
        ranks.parts_for(Path(arguments.model_dir), arguments.ranks)
        # All ranks have to draw the same tokens.
        seed = [] if arguments.seed is not None else ["--seed", str(secrets.randbits(31))]
        return ranks.run_ranks(arguments.ranks, [*arguments.argv, *seed])
    speaks = not rank  # of several ranks, the first one
    provider = _PROVIDERS[arguments.provider]
    seq2seq = (Path(arguments.model_dir) / "decoder_model.onnx").is_file()
    if seq2seq and arguments.adapter is not None:
        raise ArgumentError("--adapter expected a causal model, got an encoder-decoder")
    model: Any = (Seq2SeqLM if seq2seq else CausalLM)(arguments.model_dir, providers=[provider])
    result = model.generate(
        arguments.prompt,
        max_new_tokens=arguments.max_new_tokens,
        sampler=_sampler(arguments, model.generation_config),
        on_text=(lambda text: print(text, end="", flush=True)) if speaks else None,
        **({} if seq2seq else {"chat": not arguments.raw, "adapter": arguments.adapter}),
    )
    if speaks:
        print()
    if speaks and arguments.stats:
        print(
            f"{result.prompt_tokens} prompt tokens in {result.prefill_seconds:.3f} s, "
            f"{len(result.tokens[0])} new tokens at {result.tokens_per_second:.1f} tokens/s",
            file=sys.stderr,
        )
    return None


def _serve(arguments: argparse.Namespace) -> None:
    try:
        from .serving.server import serve
        from .serving.settings import Settings

        settings = Settings(
            host=arguments.host,
            port=arguments.port,
            provider=_PROVIDERS[arguments.provider],
            device=arguments.device,
            ranks=arguments.ranks,
            model_name=arguments.name,
            embeddings=arguments.embeddings,
            api_key=os.environ.get(_API_KEY) or None,
            ssl_certfile=arguments.ssl_certfile,
            ssl_keyfile=arguments.ssl_keyfile,
            cors_origins=tuple(arguments.cors_origin),
            max_queue=arguments.max_queue,
            deadline=arguments.deadline,
            max_body=arguments.max_body,
        )
        serve(arguments.model_dir, settings)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"serving needs the package {error.name}: pip install 'onnxruntime-npu[serve]'"
        ) from None


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {value}")
    return value


def _ranks(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return value


def _run(arguments: argparse.Namespace) -> None:
    from .torch_npu_compat.script_runner import run_script

    run_script(arguments.script, arguments.arguments, module=arguments.module, cuda=arguments.cuda)


def _sampler(arguments: argparse.Namespace, config: dict[str, Any]) -> Any:
    from .sampling import Sampler

    def setting(name: str, default: float) -> Any:
        given = getattr(arguments, name)
        if given is not None:
            return given
        configured = config.get(name)
        return default if configured is None else configured

    if arguments.greedy:
        return Sampler()
    return Sampler(
        temperature=setting("temperature", _TEMPERATURE),
        top_k=setting("top_k", _TOP_K),
        top_p=setting("top_p", _TOP_P),
        seed=arguments.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
