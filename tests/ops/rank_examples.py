"""Cases of the examples in the operators' specification: two ranks, whose results are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from onnxruntime_npu.opdef import FLOATS, Sample
from op_paths import NPU, eager_npu, make_model, run_session
from rank_calls import OPS, RANK, SIZE, group_name, provider_session

Rows = list[list[float]]
PLACE = RANK % 2  # in a pair of ranks
_EXPERTS = ([[1], [0]], [[1], [1]])  # of the two tokens of each rank
_WEIGHTS = ([[0.5], [2.0]], [[1.0], [1.0]])
_A, _B, _C, _D, *_OTHERS = ([number, 1.0] for number in range(1, 9))


def _of_pairs(example: Callable[..., None]) -> Callable[[], None]:
    """Make a case of an example: every two ranks make its calls, eagerly and in sessions."""

    def in_session(name: str, call: Sample) -> list[torch.Tensor]:
        first = RANK - PLACE
        model = make_model(OPS[name], call, body=False)
        session = provider_session(model, groups=f"neighbours={first},{first + 1}")
        return run_session(session, NPU, OPS[name], call)

    def case() -> None:
        pairs = [dist.new_group([first, first + 1]) for first in range(0, SIZE, 2)]
        for name in FLOATS:
            dtype = getattr(torch, name)

            def make(rows: Rows, dtype: torch.dtype = dtype) -> torch.Tensor:
                return torch.tensor(rows, dtype=dtype)

            group = group_name(pairs[RANK // 2])
            example(make, group, lambda name, call: eager_npu(OPS[name], call))
            if name == FLOATS[0]:
                example(make, "neighbours", in_session)

    case.__name__ = example.__name__
    return case


def _same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and torch.equal(got, want), (got, want)


@_of_pairs
def examples_of_products(make: Any, group: str, call: Any) -> None:
    rows = ([[1, 2]], [[3, 4]])[PLACE]
    gathered = call("npu_all_gather_base_mm", Sample(make(rows), make([[1, 0], [0, 1]]), group, 2))
    for result in gathered:
        _same(result, make([[1, 2], [3, 4]]))
    x1, x2 = (([[1], [2]], [[1, 1]]), ([[3], [4]], [[1, -1]]))[PLACE]
    (part,) = call("npu_mm_reduce_scatter_base", Sample(make(x1), make(x2), group, 2))
    _same(part, make(([[4, -2]], [[6, -2]])[PLACE]))
    (whole,) = call("npu_mm_all_reduce_base", Sample(make(x1), make(x2), group))
    _same(whole, make([[4, -2], [6, -2]]))


@_of_pairs
def examples_of_products_of_experts(make: Any, group: str, call: Any) -> None:
    """Tokens a, b, c and d of rank 0, e to h of rank 1: one for each expert g, times g + 2."""
    ones = [1, 1, 1, 1]
    sent = ([_A, _B, _C, _D], _OTHERS)
    weight = make([[[g + 2, 0], [0, g + 2]] for g in (2 * PLACE, 2 * PLACE + 1)])
    first = 2 * PLACE
    permuted = [tokens[first + j] for j in range(2) for tokens in sent]
    products = [[(first + j + 2) * x for x in permuted[2 * j + r]] for j in (0, 1) for r in (0, 1)]
    given = Sample(make(sent[PLACE]), weight, group, 2, ones, ones, permute_out_flag=True)
    y, _, permute_out = call("npu_alltoallv_gmm", given)
    _same(permute_out, make(permuted))
    _same(y, make(products))
    given = Sample(make(permuted), weight, group, 2, ones, ones)
    y, _ = call("npu_gmm_alltoallv", given)
    _same(y, make([[(g + 2) * x for x in token] for g, token in enumerate(sent[PLACE])]))


def _combinations(
    make: Any, sent: dict[str, list[torch.Tensor]], results: Rows
) -> Iterator[tuple[str, list[Any]]]:
    """Yield each operator that combines, with its tensors behind ``expand_x``."""
    ids = torch.tensor(_EXPERTS[PLACE], dtype=torch.int32)
    weights = torch.tensor(_WEIGHTS[PLACE])
    for name, of in (("", ""), ("_v2", "_v2"), ("_add_rms_norm", "_v2")):
        expand_x = torch.zeros_like(sent[of][0])
        expand_x[: len(results)] = make(results)
        tensors = [expand_x, ids, sent[of][2], sent[of][4], weights]
        if name == "_add_rms_norm":
            tensors += [make([[[10.0, 20.0]], [[30.0, 40.0]]]), make([1.0, 1.0])]
        yield f"npu_moe_distribute_combine{name}", tensors


@_of_pairs
def examples_of_tokens_of_experts(make: Any, group: str, call: Any) -> None:
    """Tokens a and b of rank 0, c and d of rank 1; expert 0 doubles, expert 1 triples."""
    tokens = ([_A, _B], [_C, _D])
    ids = torch.tensor(_EXPERTS[PLACE], dtype=torch.int32)
    valid = ([_B], [_A, _C, _D])[PLACE]
    sent = {}
    for version in ("", "_v2"):
        name = f"npu_moe_distribute_dispatch{version}"
        sent[version] = call(name, Sample(make(tokens[PLACE]), ids, group, 2, PLACE, 2))
        expand_x, _, _, counts, ends, _, weights = sent[version]
        assert expand_x.shape == (4, 2)
        _same(expand_x[: len(valid)], make(valid))
        _same(counts, torch.tensor([len(valid)]))
        _same(ends, torch.tensor(([1, 1], [1, 3])[PLACE], dtype=torch.int32))
        assert weights.shape == (0,)
    factor = 2 + PLACE  # of this rank's expert
    results = [[factor * x for x in row] for row in valid]
    factors = ((0.5 * 3, 2 * 2), (3, 3))[PLACE]  # weights times what the experts do
    want = make([[f * x for x in row] for f, row in zip(factors, tokens[PLACE], strict=True)])
    for name, tensors in _combinations(make, sent, results):
        *_, x = call(name, Sample(*tensors, group, 2, PLACE, 2))
        residual = tensors[5].squeeze(1) if len(tensors) > 5 else torch.zeros_like(want)
        _same(x.reshape(want.shape), want + residual)


CASES = (
    examples_of_products,
    examples_of_products_of_experts,
    examples_of_tokens_of_experts,
)
