"""The lists of tensors that npu_grouped_matmul takes, put together for its operator."""

from onnxruntime_npu.opdef import torch

from ._group_list import COUNTS, DEPTH, ENDS, NONE, PAIRS, ROWS
from ._grouped_scheme import refuse_unless

_PER_WEIGHT = ("bias", "scale", "antiquant_scale", "antiquant_offset")
_OTHER_DEVICES = (
    "offset",
    "activation_input",
    "activation_quant_scale",
    "activation_quant_offset",
    "x_dtype",
    "weight_dtype",
    "scale_dtype",
    "per_token_scale_dtype",
)


def grouped_matmul(
    x,
    weight,
    *,
    group_type,
    group_list=None,
    numbers=None,
    split_item=0,
    group_list_type=0,
    act_type=0,
    output_dtype=None,
    tuning_config=None,
    **tensors,
):
    """Return the list of results; `numbers` are the values of group_list where they are known."""
    for name in _OTHER_DEVICES:
        given = tensors.pop(name, None)
        refuse_unless(given is None or given == [], f"expected no {name} on this device, got one")
    refuse_unless(
        group_type in (NONE, ROWS, DEPTH), f"The group type must be -1, 0 or 2, got {group_type}"
    )
    refuse_unless(
        split_item in (None, 0, 1, 2, 3), f"expected split_item 0, 1, 2 or 3, got {split_item}"
    )
    x, weight = list(x), list(weight)
    refuse_unless(
        len(x) > 0 and len(weight) > 0,
        f"expected x and weight with one tensor or more, got {len(x)} and {len(weight)}",
    )
    lists = {}
    for name in (*_PER_WEIGHT, "per_token_scale"):
        given = list(tensors.pop(name, None) or [])
        length = len(x) if name == "per_token_scale" else len(weight)
        refuse_unless(
            len(given) in (0, length), f"expected {length} tensors in {name}, got {len(given)}"
        )
        lists[name] = given
    options = {
        "group_type": group_type,
        "group_list_type": group_list_type or 0,
        "act_type": act_type or 0,
        "output_dtype": output_dtype,
    }
    one_result = split_item in (2, 3)
    if group_type == NONE:
        return _of_lists(x, weight, group_list, lists, options, one_result)
    if group_type == DEPTH:
        refuse_unless(
            len(x) == 1 and len(weight) == 1,
            f"expected one x and one weight with group_type 2, got {len(x)} and {len(weight)}",
        )
        y = _call(x[0], weight[0], {}, group_list, options)
        return [y] if one_result else list(y.unbind(0))
    return _of_rows(x, weight, group_list, numbers, lists, options, one_result)


def _call(x, weight, tensors, group_list, options):
    return torch.ops.npu._npu_grouped_matmul(x, weight, **tensors, group_list=group_list, **options)


def _of_lists(x, weight, group_list, lists, options, one_result):
    """Every x by its weight."""
    refuse_unless(
        len(x) == len(weight),
        f"expected as many tensors in x as in weight with group_type -1, got {len(x)} and "
        f"{len(weight)}",
    )
    results = [
        _call(
            left,
            right,
            {name: given[i] for name, given in lists.items() if given},
            group_list,
            options,
        )
        for i, (left, right) in enumerate(zip(x, weight, strict=True))
    ]
    return [torch.cat(results)] if one_result and len(results) > 1 else results


def _of_rows(x, weight, group_list, numbers, lists, options, one_result):
    """Rows of one x, or an x for each group, by the weights of their groups."""
    if len(x) > 1 and len(x) == len(weight):  # of any sizes; group_list can only repeat these
        options = {**options, "group_type": NONE, "group_list_type": ENDS}
        return _of_lists(x, weight, None, lists, options, one_result)
    given = {name: lists[name] for name in _PER_WEIGHT if lists[name]}
    if len(weight) == 1:
        matrices, tensors = weight[0], {name: each[0] for name, each in given.items()}
    else:
        matrices = _stacked("weight", weight)
        tensors = {name: _stacked(name, each) for name, each in given.items()}
    if tokens := lists["per_token_scale"]:
        tensors["per_token_scale"] = tokens[0] if len(tokens) == 1 else torch.cat(tokens)
    if len(x) > 1:
        refuse_unless(
            matrices.dim() == 3 and len(x) == matrices.shape[0],
            f"expected one x, or one for each of the {matrices.shape[0]} weights, got {len(x)}",
        )
        sizes = [left.shape[0] for left in x]
        counts = torch.tensor(sizes, dtype=torch.int64, device=x[0].device)
        y = _call(torch.cat(x), matrices, tensors, counts, {**options, "group_list_type": COUNTS})
        return [y] if one_result else list(y.split(sizes))
    y = _call(x[0], matrices, tensors, group_list, options)
    if one_result:
        return [y]
    return list(y.split(_sizes(group_list, numbers, options["group_list_type"], y.shape[0])))


def _stacked(name, tensors):
    refuse_unless(
        all(t.shape == tensors[0].shape and t.dtype == tensors[0].dtype for t in tensors),
        f"expected tensors of one shape and dtype in {name}, got "
        f"{', '.join(str(list(t.shape)) for t in tensors)}",
    )
    return torch.stack(tensors)


def _sizes(group_list, numbers, group_list_type, rows):
    """Return the rows of each group, and of those after the last one, if any."""
    values = group_list.tolist() if numbers is None else numbers
    if group_list_type == PAIRS:
        values = [count for _, count in values]
    if group_list_type == ENDS:
        values = [end - begin for begin, end in zip([0, *values], values, strict=False)]
    left = rows - sum(values)
    return [*values, left] if left else values
