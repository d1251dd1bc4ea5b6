"""What a layer does with a paged cache, from its joint projection on."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from .node_groups import DOMAIN, SCALED_ROW_ATTENTION, SCALED_ROWS, Group, Search, said

_LENGTHS_OF_BLOCKS = ("atten_mask", "query_ends", "key_lengths", "block_table")
_OPERANDS = ("query", "keys", "values", *_LENGTHS_OF_BLOCKS)
QUERY, KEY, VALUE, MASK, ENDS, LENGTHS, TABLE = 0, 1, 2, 4, 5, 6, 18  # inputs of attention
_TAKEN = {QUERY, KEY, VALUE, MASK, ENDS, LENGTHS, TABLE}
# Attributes of attention that the node has, too; others have to be 0, as if they were left out.
ATTRIBUTES = (
    *("num_heads", "num_key_value_heads", "scale", "block_size", "sparse_mode", "pre_tokens"),
    "next_tokens",
)


def paged_attention(attention: ir.Node) -> Group | None:
    """Return the group of this attention: split, two rotations, two writes, and what is between."""
    given = _operands(attention)
    if given is None:
        return None
    search = Search(attention)
    query = search.producer(search.through(given["query"], "Reshape"), "NPURotaryMul", "npu")
    keys, values = (_written(search, given[name]) for name in ("keys", "values"))
    if query is None or keys is None or values is None:
        return None
    new_key, value = (_new_rows(search, cache) for cache in (keys, values))
    key = search.producer(new_key, "NPURotaryMul", "npu")
    split = search.producer(query.inputs[0], "Split")
    if key is None or value is None or split is None:
        return None
    rows = search.through(split.inputs[0], "Reshape")
    attended = search.reader(search.reader(attention.outputs[0], "Unsqueeze"), "Reshape")
    if (
        rows is None
        or rows.shape is None
        or rows.shape.rank() != 3
        or attended is None
        or list(split.outputs) != [query.inputs[0], key.inputs[0], value]
        or not _splits_heads(split, query, attention)
        or not _joins_heads(attended, split, attention)
        or list(query.inputs[1:]) != list(key.inputs[1:])
        or keys.inputs[1] is not values.inputs[1]
        or said(query.attributes.get("rotary_mode")) != said(key.attributes.get("rotary_mode"))
    ):
        return None
    inputs = {
        **{"rows": rows, "cos": query.inputs[1], "sin": query.inputs[2]},
        **{"past_keys": keys.inputs[0], "past_values": values.inputs[0], "slots": keys.inputs[1]},
        **{name: given[name] for name in _LENGTHS_OF_BLOCKS},
    }
    named = [(attention, name) for name in ATTRIBUTES] + [(query, "rotary_mode")]
    return Group(
        "PagedSelfAttention",
        search.nodes,
        {name: each for name, each in inputs.items() if each is not None},
        {"attended": attended, "keys": keys.outputs[0], "values": values.outputs[0]},
        [node.attributes[name] for node, name in named if name in node.attributes],
    )


def _operands(attention: ir.Node) -> dict[str, ir.Value | None] | None:
    """Return what attention to blocks of floats, or of rows with their scales, reads."""
    kind = (attention.domain, attention.op_type)
    if kind == (DOMAIN, SCALED_ROW_ATTENTION):
        if len(attention.inputs) != len(_OPERANDS):  # of latents, with rotated columns beside them
            return None
        return dict(zip(_OPERANDS, attention.inputs, strict=True))
    if kind != ("npu", "NPUFusedInferAttentionScore") or not is_plain(attention):
        return None
    places = (QUERY, KEY, VALUE, MASK, ENDS, LENGTHS, TABLE)
    return {name: attention.inputs[i] for name, i in zip(_OPERANDS, places, strict=True)}


def _written(search: Search, cache: ir.Value | None) -> ir.Node | None:
    """Return the node that writes new rows into a cache, which attention reads as it is or flat."""
    written = search.producer(cache, "NPUScatterNdUpdate", "npu")
    if written is None:
        written = search.producer(search.through(cache, "Reshape"), "NPUScatterNdUpdate", "npu")
    return written


def _new_rows(search: Search, written: ir.Node) -> ir.Value | None:
    """Return new keys or values before they are rounded, if they are, and written."""
    rows = search.through(written.inputs[2], "Reshape")
    scaled = search.producer(rows, SCALED_ROWS, DOMAIN)
    return rows if scaled is None else scaled.inputs[0]


def is_plain(
    attention: ir.Node, further: Collection[int] = (), named: Collection[str] = ()
) -> bool:
    """Whether attention is over blocks, by rows side by side, with these inputs and no others.

    ``further``: inputs beside those of blocks of floats; ``named``: attributes that they bring.
    """
    inputs = {i for i, value in enumerate(attention.inputs) if value is not None}
    layout = attention.attributes.get("input_layout")
    known = (*ATTRIBUTES, "input_layout", *named)
    other = [a for n, a in attention.attributes.items() if n not in known]
    return (
        inputs == _TAKEN | set(further)
        and "num_key_value_heads" in attention.attributes
        and layout is not None
        and layout.as_string() == "TND"
        and all(attribute.value == 0 for attribute in other)
        and not any(output.uses() for output in attention.outputs[1:])
    )


def _splits_heads(split: ir.Node, query: ir.Node, attention: ir.Node) -> bool:
    """Whether heads [1, T, N, D] are split as attention has them, and tables rotate all columns."""
    heads, parts = split.inputs[0], split.inputs[-1]
    axis = split.attributes.get("axis")
    sizes = None if parts is None else ir.convenience.get_const_tensor(parts)
    wanted = [attention.attributes[f"num_{of}heads"].as_int() for of in ("", "key_value_")]
    tables = [value.shape for value in query.inputs[1:] if value is not None]
    shape = None if heads is None else heads.shape
    return (
        shape is not None
        and shape.rank() == 4
        and axis is not None
        and axis.as_int() == 2
        and sizes is not None
        and sizes.numpy().tolist() == [*wanted, wanted[1]]
        and len(tables) == 2  # and no matrix
        and all(each is not None and each.rank() == 4 and each[3] == shape[3] for each in tables)
    )


def _joins_heads(attended: ir.Value, split: ir.Node, attention: ir.Node) -> bool:
    """Whether heads are joined as [1, T, N * D], which the node returns, and not as a matrix."""
    reshape, heads = attended.producer(), split.inputs[0]
    size = None if heads is None or heads.shape is None else heads.shape[3]
    target = None if reshape is None else reshape.inputs[1]
    constant = None if target is None else ir.convenience.get_const_tensor(target)
    if constant is None or not isinstance(size, int):
        return False
    axes = constant.numpy().tolist()
    columns = attention.attributes["num_heads"].as_int() * size
    return len(axes) == 3 and axes[0] in (0, 1) and axes[2] == columns
