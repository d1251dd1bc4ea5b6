"""The second form of a graph's dump; module and function have torch_npu's names."""

from __future__ import annotations

import json
import os
from pathlib import Path


def align_trace_json(
    input: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
) -> Path:
    """Rewrite a graph's dump with one operator per line, and return the path.

    Args:
        input: the file that ``NPUGraph.debug_dump`` wrote.
        output: default ``<name>.aligned.json`` in the same folder, for ``<name>.json``.
    """
    source = Path(input)
    suffix = source.suffix.replace(".json", "") + ".aligned.json"
    target = source.with_suffix(suffix) if output is None else Path(output)
    facts = json.loads(source.read_text())
    nodes = ",\n".join(f"  {json.dumps(node)}" for node in facts.pop("nodes"))
    target.write_text(f'{json.dumps(facts)[:-1]}, "nodes": [\n{nodes}\n]}}\n')
    return target
