"""``convert`` and ``inline``: ONNX files to ``npu::`` operators and back."""

from __future__ import annotations

import argparse
from collections import Counter

from .arguments import Commands, path


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    convert = commands.add_parser(
        "convert",
        help="an ONNX file of another exporter to npu:: operators",
        description="Rewrite norms, rotary embeddings, attention, gated MLPs, GELU, experts, "
        "and matmuls of 4 and 8 bits of an ONNX file (of torch.onnx, transformers, optimum or "
        "onnxruntime-genai) into npu:: operators with function bodies.",
    )
    convert.add_argument("source", type=path, metavar="IN", help="ONNX file")
    convert.add_argument(
        "target", type=path, metavar="OUT", help="file to write; weights go to OUT.data"
    )
    convert.set_defaults(run=_convert)

    inline = commands.add_parser(
        "inline",
        help="an ONNX file with npu:: operators to plain ONNX",
        description="Replace every npu:: node by its function body, for any other runtime.",
    )
    inline.add_argument("source", type=path, metavar="IN", help="ONNX file")
    inline.add_argument(
        "target", type=path, metavar="OUT", help="file to write; weights go to OUT.data"
    )
    inline.set_defaults(run=_inline)


def _convert(arguments: argparse.Namespace) -> None:
    from ..converters import convert

    report = convert(arguments.source, arguments.target)
    fused = sum(count for name, count in report.nodes.items() if name.startswith("npu::"))
    size = sum(report.files.values()) / 2**20
    print(f"{arguments.target}: {sum(report.nodes.values())} nodes ({fused} npu::), {size:.0f} MiB")
    for rule, count in report.converted.items():
        print(f"converted: {rule}{f' ({count} times)' if count > 1 else ''}")
    for reason, count in Counter(report.left.values()).items():
        print(f"left as it is: {reason}{f' ({count} times)' if count > 1 else ''}")


def _inline(arguments: argparse.Namespace) -> None:
    from ..converters import inline

    nodes = inline(arguments.source, arguments.target)
    print(f"{arguments.target}: {sum(nodes.values())} nodes")
