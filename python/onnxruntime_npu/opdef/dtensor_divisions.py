"""How ranks may divide the operators: along which dimensions, with which results.

An operator without an entry is computed as a whole by every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

SUM = "sum"  # the ranks' results or gradients are terms
Bound = Mapping[str, Any]  # the arguments by name


class Division(NamedTuple):
    """One way to divide a call among ranks."""

    inputs: Mapping[str, int] = {}  # dimensions of arguments; the others are on every rank
    outputs: tuple[int | str | None, ...] = ()  # dimensions of results, or SUM
    divided: Mapping[str, int] = {}  # numbers of which a rank has a part
    changed: Mapping[str, int] = {}  # the part

    def output(self, i: int) -> int | str | None:
        """Return how a result is divided: None if it is on every rank."""
        return self.outputs[i] if i < len(self.outputs) else None


WHOLE = Division()


def _same(names: Iterable[str], outputs: int, dims: Iterable[int]) -> list[Division]:
    names = tuple(names)
    return [Division(dict.fromkeys(names, i), (i,) * outputs) for i in dims]


def _elementwise(*names: str) -> Callable[[Bound], list[Division]]:
    return lambda bound: _same(names, 1, range(bound[names[0]].dim()))


def _but_one(*names: str) -> Callable[[Bound], list[Division]]:
    """Rows along the argument ``dim``."""

    def divisions(bound: Bound) -> list[Division]:
        rank = bound[names[0]].dim()
        return _same(names, 1, (i for i in range(rank) if i != bound["dim"] % rank))

    return divisions


def _norm(names: tuple[str, ...], outputs: int) -> Callable[[Bound], list[Division]]:
    return lambda bound: _same(names, outputs, range(bound[names[0]].dim() - bound["gamma"].dim()))


def _norm_backward(bound: Bound) -> list[Division]:
    rows = range(bound["self"].dim() - bound["gamma"].dim())
    return [Division({"dy": i, "self": i, "rstd": i}, (i, SUM)) for i in rows]


def _rotary(bound: Bound) -> list[Division]:
    if bound.get("rotate") is not None:
        return []
    sizes = bound["r1"].shape
    return [
        Division({"self": i, **({"r1": i, "r2": i} if sizes[i] > 1 else {})}, (i,))
        for i in range(bound["self"].dim() - 1)
        if sizes[i] in (1, bound["self"].shape[i])
    ]


def _batched_product(bound: Bound) -> list[Division]:
    x, y = bound["input"], bound["mat2"]
    if bound["output_sizes"] or x.dim() != y.dim():
        return []
    row = x.dim() - 2
    return [
        *_same(("input", "mat2"), 1, (i for i in range(row) if x.shape[i] == y.shape[i])),
        Division({"input": row}, (row,)),
        Division({"mat2": row + 1}, (row + 1,)),
        Division({"input": row + 1, "mat2": row}, (SUM,)),
    ]


def _convolution(bound: Bound) -> list[Division]:
    weights = {"weight": 0, **({"bias": 0} if bound["bias"] is not None else {})}
    channels = [Division(weights, (1,))] if bound["groups"] == 1 else []
    return [Division({"input": 0}, (0,)), *channels]


def _convolution_backward(bound: Bound) -> list[Division]:
    names = [a for a in bound if a.startswith("grad")]
    if len(names) != 1:
        return []
    grad = names[0]
    channels = [Division({grad: 1, "weight": 0}, (SUM, 0, 0))] if bound["groups"] == 1 else []
    return [Division({"input": 0, grad: 0}, (0, SUM, SUM)), *channels]


def _attention(bound: Bound) -> list[Division]:
    """By sequences, or by heads."""
    others = ("pse", "padding_mask", "prefix", "sink", "dropout_mask")
    if bound["keep_prob"] != 1.0 or any(bound[name] is not None for name in others):
        return []
    layout, mask = bound["input_layout"], bound["atten_mask"]
    divisions, qkv = [], ("query", "key", "value")
    of_mask = mask is not None and mask.dim() == 4
    if layout != "TND" and bound["sparse_mode"] in range(5):
        batch = layout.index("B")
        divided = dict.fromkeys(qkv, batch)
        if of_mask and mask.shape[0] > 1:
            divided["atten_mask"] = 0
        divisions.append(Division(divided, (batch, 0, 0)))
    heads = next((layout.index(axis) for axis in "NH" if axis in layout), None)
    if heads is not None:
        divided = dict.fromkeys(qkv, heads)
        if of_mask and mask.shape[1] > 1:
            divided["atten_mask"] = 1
        if "N" in layout or bound["query"].shape[heads] == bound["key"].shape[heads]:
            numbers = {"head_num": bound["head_num"]}
            divisions.append(Division(divided, (heads, 1, 1), numbers))
    return divisions


def _loss(bound: Bound) -> list[Division]:
    if bound["reduction"] != "none":
        return []
    return [Division({"input": 0, "target": 0}, (0, 0, 0, 0))]


DIVISIONS: dict[str, Callable[[Bound], list[Division]]] = {
    "npu_fast_gelu": _elementwise("self"),
    "fast_gelu": _elementwise("self"),
    "npu_gelu": _elementwise("self"),
    "npu_mish": _elementwise("self"),
    "npu_silu": _elementwise("self"),
    "npu_swiglu": _but_one("self"),
    "npu_swiglu_backward": _but_one("grad_output", "self"),
    "npu_rms_norm": _norm(("self",), 2),
    "npu_rms_norm_backward": _norm_backward,
    "npu_add_rms_norm": _norm(("x1", "x2"), 3),
    "npu_rotary_mul": _rotary,
    "npu_bmmV2": _batched_product,
    **dict.fromkeys(("npu_conv2d", "npu_conv3d"), _convolution),
    **dict.fromkeys(("npu_conv2d_backward", "npu_conv3d_backward"), _convolution_backward),
    "npu_fusion_attention": _attention,
    "npu_cross_entropy_loss": _loss,
}


def only_division(name: str, bound: Bound) -> Division | None:
    """Return the one division of an operator in which ranks communicate, None for others.

    Raises:
        RuntimeError: the operator is called by ranks with plain tensors.

    """
    if name == "npu_all_gather_base_mm":
        inputs = {"self": 0, "x2": 1, "bias": 0, "x1_scale": 0, "x2_scale": 1}
        outputs: tuple[int | str | None, ...] = (1, None)
    elif name == "npu_mm_reduce_scatter_base":
        # Ranks have a bias and scales of their own, one beside the other.
        inputs = {"self": 1, "x2": 0, "bias": 0, "x1_scale": 1, "x2_scale": 0}
        outputs = (0,)
    elif name == "npu_mm_all_reduce_base":
        inputs, outputs = {"x1": bound["x1"].dim() - 1, "x2": 0}, (None,)
    elif {"hcom", "group_ep"} & set(bound):
        raise RuntimeError(f"[{name}] expected plain tensors of this rank, got DTensors")
    else:
        return None
    return Division({n: d for n, d in inputs.items() if bound[n] is not None}, outputs)
