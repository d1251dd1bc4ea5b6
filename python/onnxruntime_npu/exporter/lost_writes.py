"""What a traced module writes to its buffers and arguments, which no file keeps."""

from __future__ import annotations

import warnings

import torch
from torch.export.graph_signature import OutputKind

_PLACES = {
    OutputKind.BUFFER_MUTATION: "buffer",
    OutputKind.PARAMETER_MUTATION: "parameter",
    OutputKind.USER_INPUT_MUTATION: "argument",
}


def lost_writes(program: torch.export.ExportedProgram) -> list[str]:
    """Return a sentence for each buffer, parameter or argument whose new value is not returned."""
    if not any(_writes(node) for node in program.graph.nodes):
        return []
    # Only then the signature has what is written, also through views.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own copies
        outputs = program.run_decompositions({}).graph_signature.output_specs
    returned = {spec.arg.name for spec in outputs if spec.kind == OutputKind.USER_OUTPUT}
    return [
        f"the module writes to its {_PLACES[spec.kind]} {spec.target!r}, and the file does not "
        f"return the new value: return it"
        for spec in outputs
        if spec.kind in _PLACES and spec.arg.name not in returned
    ]


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
