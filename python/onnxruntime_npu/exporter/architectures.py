"""The list of supported architectures, which are exported and compared with transformers.

The command's help, the errors and docs/export.md are generated from it, and tests/export runs a
model of each; ``python -m onnxruntime_npu.exporter.architectures docs/export.md`` writes its table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """An architecture with its name in transformers."""

    model_type: str
    particulars: str  # of its decoder, or of the models that users know
    tested: dict[str, Any] = field(default_factory=dict)  # settings of the tested configuration


_ROUTED = "routed MLP"
ARCHITECTURES = (
    Architecture(
        "llama", "Llama, SmolLM2; any fixed rotary frequencies, embedding and head tied or not"
    ),
    Architecture("mistral", "sliding window", {"sliding_window": 4}),
    Architecture("mixtral", _ROUTED, {"num_local_experts": 4}),
    Architecture(
        "phi3", "joint projections", {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
    ),
    Architecture("qwen2", "bias of query, key and value; sliding window of some layers"),
    Architecture(
        "qwen2_moe",
        f"{_ROUTED} and a shared expert",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 48,
        },
    ),
    Architecture("qwen3", "norms of queries and keys, head size of its own", {"head_dim": 32}),
)

_BEGIN, _END = "<!-- architectures: begin -->", "<!-- architectures: end -->"


def supported() -> str:
    """Return the architectures in one phrase."""
    names = ", ".join(architecture.model_type for architecture in ARCHITECTURES)
    return f"{names} and what computes the same"


def table() -> str:
    """Return the table of docs/export.md."""
    lines = ["| `model_type` | what is particular to it |", "|---|---|"]
    lines += [f"| `{a.model_type}` | {a.particulars} |" for a in ARCHITECTURES]
    return "\n".join(lines)


def with_table(document: str) -> str:
    """Return a document with the table between its two marks."""
    before, _, rest = document.partition(_BEGIN)
    _, mark, after = rest.partition(_END)
    if not mark:
        raise ValueError(f"expected {_BEGIN} and {_END} in the document")
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
