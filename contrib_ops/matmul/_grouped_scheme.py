"""How npu_grouped_matmul multiplies operands of two types, and which tensors that takes."""

from onnxruntime_npu.opdef import check, torch

OP = "npu_grouped_matmul"
FLOAT_NAMES = ("float32", "float16", "bfloat16")


def refuse_unless(condition, message):
    """Check with the operator's name."""
    check(condition, f"[{OP}] {message}")


# The tensors that a scheme takes; "!" marks those that it needs.
TENSORS_OF = {
    "float": ("bias",),
    "weight_only": ("bias", "antiquant_scale!", "antiquant_offset"),
    "int8": ("bias", "scale!", "per_token_scale"),
    "int4": ("scale!", "per_token_scale"),
    "a8w4": ("bias!", "scale!", "per_token_scale"),
}
TITLES = {
    "float": "x and weight of floats",
    "weight_only": "x of floats and weight of integers",
    "int8": "x and weight of int8",
    "int4": "x and weight of int4",
    "a8w4": "x of int8 and weight of int4",
}


def scheme_of(x, weight):
    """Return how operands of these types (names) are multiplied."""
    if x in FLOAT_NAMES and weight == x:
        return "float"
    if x in FLOAT_NAMES and weight in ("int8", "int32"):
        return "weight_only"
    schemes = {("int8", "int8"): "int8", ("int32", "int32"): "int4", ("int8", "int32"): "a8w4"}
    refuse_unless(
        (x, weight) in schemes,
        "expected x and weight of one type of floats, x of floats and weight of int8 or int32, or "
        f"both of int8 or int32, got {x} and {weight}",
    )
    return schemes[x, weight]


def check_result(scheme, dtype, per_token_scale, act_type):
    """Refuse results of integers that a scheme does not have."""
    refuse_unless(
        dtype != "int32" or (scheme == "int8" and per_token_scale is None and act_type == 0),
        "expected a result of int32 with x and weight of int8, no per_token_scale and no "
        f"activation, got it with {TITLES[scheme]}",
    )
    refuse_unless(
        dtype != "int8" or scheme == "int8",
        f"expected a result of int8 with x and weight of int8, got it with {TITLES[scheme]}",
    )


def row_bias(bias, scheme, groups, n, one_matrix):
    """Return the bias as [groups, 1, N]."""
    if bias is None:
        return None
    wanted = [n] if one_matrix else [groups, n]
    refuse_unless(
        list(bias.shape) in ([[n], [1, n]] if one_matrix else [wanted]),
        f"expected bias of shape {wanted}, got {list(bias.shape)}",
    )
    refuse_unless(
        bias.dtype != torch.int32 or scheme == "int8",
        f"expected bias of floats with {TITLES[scheme]}, got int32",
    )
    return bias.reshape(groups, 1, n)


def token_scale(per_token_scale, m):
    """Return per_token_scale as [M, 1]."""
    if per_token_scale is None:
        return None
    shape = list(per_token_scale.shape)
    refuse_unless(
        shape in ([m], [m, 1]),
        f"expected per_token_scale of shape [{m}] or [{m}, 1], got {shape}",
    )
    return per_token_scale.reshape(m, 1)


def per_column(name, values, groups, n, one_matrix):
    """Return [groups, 1, N] or [groups, 1, 1] for [groups, N], [groups, 1] or [groups]."""
    shape = list(values.shape)
    if one_matrix:
        refuse_unless(
            shape in ([n], [1], [1, n]), f"expected {name} of shape [{n}] or [1], got {shape}"
        )
        return values.reshape(1, 1, -1)
    refuse_unless(
        shape in ([groups, n], [groups, 1], [groups]),
        f"expected {name} of shape [{groups}, {n}], [{groups}, 1] or [{groups}], got {shape}",
    )
    return values.reshape(groups, 1, 1 if values.dim() == 1 else shape[1])


def per_block(name, values, groups, k, n, one_matrix):
    """Return values [groups, blocks, N] of a tensor [groups, N] or [groups, blocks, N]."""
    shape = list(values.shape)
    if one_matrix:
        refuse_unless(
            shape == [n] or (len(shape) == 2 and shape[1] == n),
            f"expected {name} of shape [{n}] or [blocks, {n}], got {shape}",
        )
        blocked = values.reshape(1, shape[0] if len(shape) == 2 else 1, n)
    else:
        refuse_unless(
            shape == [groups, n] or (len(shape) == 3 and [shape[0], shape[2]] == [groups, n]),
            f"expected {name} of shape [{groups}, {n}] or [{groups}, blocks, {n}], got {shape}",
        )
        blocked = values.unsqueeze(1) if values.dim() == 2 else values
    blocks = blocked.shape[1]
    refuse_unless(
        blocks >= 1 and k % blocks == 0,
        f"expected {name} with a number of blocks that divides {k}, got {blocks}",
    )
    return blocked
