"""The provider of each node of a session, and the reason."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .session_hook import DECISIONS


def assignment(session: Any) -> list[dict[str, str]]:
    """Returns the provider of each node of a session, and why a node was left to the CPU.

    Works for every session created after ``import onnxruntime_npu``, with no option to set.

    Args:
        session: an ``onnxruntime.InferenceSession``.

    Returns:
        One ``{node, op_type, domain, provider, reason, fused_into}`` per node of the graph as
        onnxruntime partitioned it, after its basic optimizations. ``reason`` is "" for nodes on
        the NPU. ``fused_into`` is the operator that computes the node together with others, such as
        ``"LayerNormalization"``, or alone with constants that it reads from the model, and "" for
        other nodes. An ``npu`` node that was replaced by its function body is listed first, with
        the reason.

    Raises:
        RuntimeError: the session was created before the import, or without the provider.
    """
    try:
        subgraphs = session.get_provider_graph_assignment_info()
    except Exception as error:
        raise RuntimeError(
            "expected a session made after `import onnxruntime_npu` with NPUExecutionProvider "
            f"among its providers, got one without a record of its nodes ({error})"
        ) from error
    reasons: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for decision in getattr(session, DECISIONS, None) or []:
        reasons[(decision["domain"], decision["op_type"], decision["node"])].append(decision)

    rows = []
    for subgraph in subgraphs:
        for node in subgraph.get_nodes():
            domain = "" if node.domain == "ai.onnx" else node.domain
            known = reasons.get((domain, node.op_type, node.name))
            decision = known.pop(0) if known else None
            reason = decision["reason"] if decision and not decision["claimed"] else ""
            rows.append(
                {
                    "node": node.name,
                    "op_type": node.op_type,
                    "domain": domain,
                    "provider": subgraph.ep_name,
                    "reason": reason,
                    "fused_into": decision["fused_into"] if decision else "",
                }
            )
    inlined = [
        {
            "node": decision["node"],
            "op_type": decision["op_type"],
            "domain": decision["domain"],
            "provider": "CPUExecutionProvider",
            "reason": f"{decision['reason']}; its function body was inlined",
            "fused_into": "",
        }
        for left in reasons.values()
        for decision in left
        if decision["domain"] == "npu" and not decision["claimed"]
    ]
    return inlined + rows
