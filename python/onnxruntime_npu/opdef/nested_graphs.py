"""The graphs of a model: its own, and those of control flow within it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def nested_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those of its nodes' attributes, at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + [*attribute.graphs]:
                yield from nested_graphs(inner)
