"""Writing and reading the rows of an int8 cache that end with their scales."""

from __future__ import annotations

import onnx_ir as ir

from .node_groups import (
    BYTES_OF_FLOATS,
    DOMAIN,
    FLOATS_OF_BYTES,
    SCALED_ROW_ATTENTION,
    SCALED_ROWS,
    Group,
    Search,
    is_constant,
)
from .paged_attention_group import (
    ATTRIBUTES,
    ENDS,
    KEY,
    LENGTHS,
    MASK,
    QUERY,
    TABLE,
    VALUE,
    is_plain,
)

_KEY_SCALE, _VALUE_SCALE, _ROPES = 14, 16, (24, 25)  # inputs of attention
_MODES = ("key_antiquant_mode", "value_antiquant_mode")
_SCALES_OF_BLOCKS_AND_HEADS = 5
_BY_TOKEN = {"quant_mode": "pertoken", "dst_type_max": 0.0}  # attributes of npu_dynamic_quant


def scaled_rows(joined: ir.Node) -> Group | None:
    """Return the group of this concatenation: integers, their scales, and the bytes of these."""
    if (joined.domain, joined.op_type) != ("", "Concat") or len(joined.inputs) != 2:
        return None
    search = Search(joined)
    integers, scales = joined.inputs
    given = search.producer(scales, BYTES_OF_FLOATS, DOMAIN)
    quant = search.producer(integers, "NPUDynamicQuant", "npu")
    axis = joined.attributes.get("axis")
    if given is None or quant is None or axis is None or joined.outputs[0].shape is None:
        return None
    if (
        given.inputs[0] is not quant.outputs[1]
        or len(quant.inputs) != 1
        or any(each.value != _BY_TOKEN.get(name) for name, each in quant.attributes.items())
        or axis.as_int() not in (-1, joined.outputs[0].shape.rank() - 1)
    ):
        return None
    rows = quant.inputs[0]
    assert rows is not None
    return Group(SCALED_ROWS, search.nodes, {"x": rows}, {"y": joined.outputs[0]}, [])


def scaled_row_attention(attention: ir.Node) -> Group | None:
    """Return the group of this attention to blocks of such rows: with the parts of these."""
    if (attention.domain, attention.op_type) != ("npu", "NPUFusedInferAttentionScore"):
        return None
    ropes = [attention.inputs[i] for i in _ROPES if i < len(attention.inputs)]
    further = {_KEY_SCALE, _VALUE_SCALE, *(_ROPES if any(ropes) else ())}
    if not is_plain(attention, further, _MODES):
        return None
    modes = [attention.attributes.get(name) for name in _MODES]
    if any(mode is None or mode.as_int() != _SCALES_OF_BLOCKS_AND_HEADS for mode in modes):
        return None
    search, given = Search(attention), attention.inputs
    keys = _cache(search, given[KEY], given[_KEY_SCALE])
    values = _cache(search, given[VALUE], given[_VALUE_SCALE])
    query = given[QUERY]
    if keys is None or values is None or query is None:
        return None
    inputs = {
        **{"query": query, "keys": keys, "values": values, "atten_mask": given[MASK]},
        **{"query_ends": given[ENDS], "key_lengths": given[LENGTHS], "block_table": given[TABLE]},
    }
    if any(ropes):  # of latents, beside whose blocks are those of rotated columns
        inputs["query_rope"], columns = ropes
        if (blocks := search.through(columns, "Reshape")) is None:
            return None
        inputs["key_rope"] = blocks
    return Group(
        SCALED_ROW_ATTENTION,
        search.nodes,
        {name: each for name, each in inputs.items() if each is not None},
        {"attended": attention.outputs[0]},
        [attention.attributes[name] for name in ATTRIBUTES if name in attention.attributes],
    )


def _cache(search: Search, integers: ir.Value | None, scales: ir.Value | None) -> ir.Value | None:
    """Return the cache whose parts these are."""
    elements = search.through(integers, "Reshape")
    of_elements = search.producer(elements, "Slice")
    turned = search.producer(scales, "Transpose")
    floats = None if turned is None else search.producer(turned.inputs[0], FLOATS_OF_BYTES, DOMAIN)
    of_bytes = None if floats is None else search.producer(floats.inputs[0], "Slice")
    if of_elements is None or turned is None or of_bytes is None:
        return None
    order = turned.attributes.get("perm")
    cache = of_elements.inputs[0]
    if (
        cache is not of_bytes.inputs[0]
        or order is None
        or list(order.as_ints()) != [0, 2, 1]
        or _ends(of_elements) != (0, -4)
        or _ends(of_bytes) != (-4, None)
    ):
        return None
    return cache


def _ends(part: ir.Node) -> tuple[int, int | None] | None:
    """Return where a slice of the last axis begins and ends; None for any other slice."""
    if any(not is_constant(value) for value in part.inputs[1:]):
        return None
    found = [ir.convenience.get_const_tensor(value) for value in part.inputs[1:] if value]
    numbers = [tensor.numpy().ravel().tolist() for tensor in found if tensor is not None]
    shape = part.inputs[0].shape if part.inputs[0] is not None else None
    if shape is None or [len(each) for each in numbers] not in ([1] * 3, [1] * 4):
        return None
    (begin,), (end,), (axis,), *steps = numbers
    if axis not in (-1, shape.rank() - 1) or any(step != [1] for step in steps):
        return None
    return begin, None if end >= 2**31 - 1 else end
