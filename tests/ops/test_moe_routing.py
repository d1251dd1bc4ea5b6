"""What holds for every routing: its inverse gives the tokens back, and the counts are NumPy's.

Weights are powers of two, so that sums of copies are exact and results equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime_npu as npu
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime_npu import torch_device

on_devices = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "npu",
            marks=pytest.mark.skipif(
                not torch_device.is_built(), reason="this build has no torch device"
            ),
        ),
    ],
)


@dataclass
class Routing:
    """Tokens and the experts of their slots."""

    x: torch.Tensor
    experts: torch.Tensor
    number: int  # of experts

    @property
    def slots(self) -> int:
        return self.experts.shape[1]

    @property
    def rows(self) -> int:
        return self.experts.numel()

    def on(self, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x.to(device), self.experts.to(device)


@st.composite
def routings(draw: Any) -> Routing:
    """Return random experts, one token for each expert, or the same expert for all tokens."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens, slots = draw(st.integers(1, 40)), draw(st.sampled_from([1, 2, 4]))
    rows = tokens * slots
    kind = draw(st.sampled_from(["random", "one_for_each", "one_for_all", "few"]))
    number = rows if kind == "one_for_each" else draw(st.integers(1, 70))
    experts = {
        "random": lambda: generator.integers(0, number, rows),
        "one_for_each": lambda: generator.permutation(rows),
        "one_for_all": lambda: np.full(rows, number - 1),
        # Most experts have no token.
        "few": lambda: generator.choice(generator.integers(0, number, 2), rows),
    }[kind]()
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    x = torch.from_numpy(generator.standard_normal((tokens, draw(st.sampled_from([1, 9, 300])))))
    return Routing(
        x.to(dtype), torch.from_numpy(experts.astype(np.int32)).reshape(tokens, slots), number
    )


def _weights(routing: Routing, device: str) -> torch.Tensor | None:
    if routing.slots == 1:
        return None
    shape = routing.experts.shape
    return torch.full(shape, 1 / routing.slots, dtype=routing.x.dtype, device=device)


def _finalized(
    routing: Routing, rows: torch.Tensor, index: torch.Tensor, mode: int
) -> torch.Tensor:
    weights = _weights(routing, rows.device.type)
    y = npu.npu_moe_finalize_routing(rows, None, None, None, weights, index, None, mode)
    return y.cpu()


def _part(routing: Routing, kept: np.ndarray) -> torch.Tensor:
    """Return the tokens times the part of their slots that was kept."""
    share = torch.from_numpy(kept.reshape(routing.experts.shape).mean(1))
    return (routing.x.double() * share[:, None]).to(routing.x.dtype)


def _column_rows(routing: Routing) -> torch.Tensor:
    tokens, slots = routing.experts.shape
    return torch.arange(routing.rows, dtype=torch.int32).reshape(slots, tokens).t().contiguous()


def _sorted_rows(routing: Routing) -> np.ndarray:
    return np.argsort(routing.experts.numpy().reshape(-1), kind="stable")


@on_devices
@given(routing=routings())
def test_finalizing_what_was_routed_gives_the_tokens_back(device: str, routing: Routing) -> None:
    x, experts = routing.on(device)
    rows, index, sorted_experts = npu.npu_moe_init_routing(
        x, _column_rows(routing).to(device), experts, x.shape[0]
    )
    assert torch.equal(_finalized(routing, rows, index, 0), routing.x)
    flat = routing.experts.numpy().reshape(-1)
    assert np.array_equal(sorted_experts.cpu().numpy(), np.sort(flat))

    rows, index, *_ = npu.npu_moe_init_routing_v2(x, experts, expert_num=routing.number)
    assert torch.equal(_finalized(routing, rows, index, 2), routing.x)


@on_devices
@given(routing=routings(), active=st.integers(0, 40))
def test_tokens_behind_the_active_ones_are_dropped(
    device: str, routing: Routing, active: int
) -> None:
    x, experts = routing.on(device)
    order = _sorted_rows(routing)

    def kept_of(count: int) -> np.ndarray:
        kept = np.zeros(routing.rows)
        kept[order[:count]] = 1
        return kept

    def padded(rows: torch.Tensor) -> torch.Tensor:
        missing = routing.rows - rows.shape[0]
        return torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])

    rows, index, _ = npu.npu_moe_init_routing(x, _column_rows(routing).to(device), experts, active)
    count = min(active, x.shape[0]) * routing.slots
    assert rows.shape[0] == count
    expected = _part(routing, kept_of(count))
    assert torch.equal(_finalized(routing, padded(rows), index, 0), expected)

    rows, index, *_ = npu.npu_moe_init_routing_v2(
        x, experts, expert_num=routing.number, active_num=active
    )
    count = min(active, routing.rows) if active else routing.rows
    assert rows.shape[0] == count
    expected = _part(routing, kept_of(count))
    assert torch.equal(_finalized(routing, padded(rows), index, 2), expected)


@on_devices
@given(routing=routings(), ends=st.tuples(st.integers(0, 70), st.integers(0, 70)))
def test_experts_elsewhere_take_no_part(
    device: str, routing: Routing, ends: tuple[int, int]
) -> None:
    start, end = sorted(ends)
    end += start == end
    x, experts = routing.on(device)
    rows, index, *_ = npu.npu_moe_init_routing_v2(x, experts, active_expert_range=[start, end])
    flat = routing.experts.numpy().reshape(-1)
    here = (flat >= start) & (flat < end)
    assert torch.equal(_finalized(routing, rows, index, 2), _part(routing, here))
    assert not rows[int(here.sum()) :].any()


@on_devices
@given(routing=routings(), share=st.floats(0, 1))
def test_rows_beyond_the_capacity_are_dropped(device: str, routing: Routing, share: float) -> None:
    x, experts = routing.on(device)
    capacity = max(1, int(share * x.shape[0]))
    rows, index, _, _ = npu.npu_moe_init_routing_v2(
        x, experts, expert_num=routing.number, drop_pad_mode=1, expert_capacity=capacity
    )
    assert rows.shape == (routing.number, capacity, x.shape[1])
    flat = routing.experts.numpy().reshape(-1)
    seen = np.zeros(routing.number, int)
    kept, places = np.zeros(routing.rows), np.full(routing.rows, -1)
    for row, expert in enumerate(flat):
        if seen[expert] < capacity:
            kept[row] = 1
            places[row] = expert * capacity + seen[expert]
        seen[expert] += 1
    assert np.array_equal(index.cpu().numpy(), places)
    assert torch.equal(_finalized(routing, rows, index, 3), _part(routing, kept))
    filled = np.isin(np.arange(routing.number * capacity), places)
    assert not rows.cpu().reshape(-1, x.shape[1])[torch.from_numpy(~filled)].any()


@on_devices
@given(routing=routings())
def test_both_forms_of_the_index_are_inverse(device: str, routing: Routing) -> None:
    x, experts = routing.on(device)
    forms = [
        npu.npu_moe_init_routing_v2(x, experts, expert_num=routing.number, row_idx_type=kind)[1]
        for kind in (0, 1)
    ]
    places, rows = (form.cpu().numpy() for form in forms)
    assert np.array_equal(rows, _sorted_rows(routing))
    assert np.array_equal(rows[places], np.arange(routing.rows))


@on_devices
@given(routing=routings(), more=st.integers(0, 3))
def test_counts_of_tokens(device: str, routing: Routing, more: int) -> None:
    x, experts = routing.on(device)
    number = routing.number + more
    counts = np.bincount(routing.experts.numpy().reshape(-1), minlength=number)

    def histogram(kind: int, **options: Any) -> np.ndarray:
        found = npu.npu_moe_init_routing_v2(
            x,
            experts,
            expert_num=number,
            expert_tokens_num_type=kind,
            expert_tokens_num_flag=True,
            **options,
        )
        return found[2].cpu().numpy()

    assert np.array_equal(histogram(0), counts.cumsum())
    assert np.array_equal(histogram(1), counts)
    assert np.array_equal(histogram(1, drop_pad_mode=1, expert_capacity=1), counts)
    pairs = np.zeros((number, 2), int)
    (used,) = counts.nonzero()
    pairs[: len(used)] = np.stack([used, counts[used]], 1)
    assert np.array_equal(histogram(2), pairs)
    ends = npu.npu_moe_compute_expert_tokens(experts.reshape(-1).sort().values, number)
    assert np.array_equal(ends.cpu().numpy(), counts.cumsum())


@on_devices
@given(routing=routings(), inactive=st.booleans(), seed=st.integers(0, 2**16))
def test_a_layer_of_experts_that_do_nothing(
    device: str, routing: Routing, inactive: bool, seed: int
) -> None:
    """Gating, routing, counting and finalizing with the weights add up to the tokens."""
    tokens, number = routing.x.shape[0], max(routing.number, routing.slots)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, number, generator=generator)
    finished = torch.rand(tokens, generator=generator) < 0.5 if inactive else None
    weights, experts, row_idx = npu.npu_moe_gating_top_k_softmax(
        logits.to(device), None if finished is None else finished.to(device), k=routing.slots
    )
    x = routing.x.float().to(device)
    rows, index, sorted_experts = npu.npu_moe_init_routing(x, row_idx, experts, tokens)
    ends = npu.npu_moe_compute_expert_tokens(sorted_experts, number).cpu()
    active = tokens if finished is None else int((~finished).sum())
    assert int(ends[-1]) == active * routing.slots
    y = npu.npu_moe_finalize_routing(rows, None, None, None, weights, index, None)
    total = weights.cpu().double().sum(1, keepdim=True)
    # Two roundings for each of the few slots.
    torch.testing.assert_close(y.cpu().double(), routing.x.double() * total, rtol=1e-6, atol=1e-6)


@on_devices
@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(1, 6),
    experts=st.integers(1, 9),
    dropped=st.integers(0, 3),
)
def test_re_routing_moves_whole_tokens(
    device: str, seed: int, ranks: int, experts: int, dropped: int
) -> None:
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 4, (ranks, experts))
    total = int(counts.sum())
    # The expert and the number of each token, as the ranks send them.
    owners = np.concatenate([np.repeat(np.arange(experts), row) for row in counts])
    tokens = np.stack([owners, np.arange(total)], 1).astype(np.int8)
    tokens = np.concatenate([tokens, np.full((dropped, 2), 99, np.int8)])
    given_tokens = torch.from_numpy(tokens).to(device)
    scales = torch.from_numpy(tokens[:, 1].astype(np.float32)).to(device)
    number = torch.from_numpy(counts).to(device)
    moved, moved_scales, source, sums = (
        result.cpu().numpy()
        for result in npu.npu_moe_re_routing(given_tokens, number, per_token_scales=scales)
    )
    order = np.argsort(owners, kind="stable")
    assert np.array_equal(source, [*order, *[-1] * dropped])
    assert np.array_equal(moved[:total], tokens[order]) and not moved[total:].any()
    assert np.array_equal(moved_scales[:total], order) and not moved_scales[total:].any()
    assert np.array_equal(sums, counts.sum(0))
    places = npu.npu_moe_re_routing(given_tokens, number, idx_type=1)[2].cpu().numpy()
    assert np.array_equal(moved[places[:total]], tokens[:total])
    assert (places[total:] == -1).all()


@on_devices
@given(routing=routings(), int4=st.booleans(), smooth=st.booleans())
def test_quantised_rows_are_those_of_dynamic_quantisation(
    device: str, routing: Routing, int4: bool, smooth: bool
) -> None:
    x, experts = routing.on(device)
    x = x.repeat_interleave(8, 1)  # words of int4 are whole
    scale = torch.linspace(0.5, 2, x.shape[1], device=device)[None] if smooth else None
    plain = npu.npu_moe_init_routing_v2(x, experts, expert_num=routing.number)
    got = npu.npu_moe_init_routing_v2(
        x, experts, expert_num=routing.number, scale=scale, quant_mode=13 if int4 else 1
    )
    rows, scales = npu.npu_dynamic_quant(
        plain[0],
        smooth_scales=None if scale is None else scale[0],
        dst_type=torch.quint4x2 if int4 else torch.int8,
    )
    expected = rows.cpu().contiguous()
    assert torch.equal(got[0].cpu(), expected.view(torch.uint8) if int4 else expected)
    assert torch.equal(got[3].cpu(), scales.cpu())
    assert torch.equal(got[1].cpu(), plain[1].cpu())


@on_devices
@pytest.mark.parametrize("rows", [3000, 70000])
@pytest.mark.parametrize("number", [8, 2048, 10240])
def test_many_rows_keep_their_order_on_all_threads(device: str, rows: int, number: int) -> None:
    generator = np.random.default_rng(rows + number)
    experts = generator.integers(0, number, (rows, 1)).astype(np.int32)
    x = torch.arange(rows, dtype=torch.float32)[:, None]
    moved, *_ = npu.npu_moe_init_routing_v2(
        x.to(device), torch.from_numpy(experts).to(device), expert_num=number
    )
    order = np.argsort(experts[:, 0], kind="stable")
    assert np.array_equal(moved.cpu().numpy()[:, 0], order)


def test_any_int32_is_an_expert_of_the_legacy_routing() -> None:
    experts = np.random.default_rng(5).integers(-(2**31), 2**31, (5000, 2)).astype(np.int32)
    experts[:2, 0] = -(2**31), 2**31 - 1
    index = torch.arange(10000, dtype=torch.int32).reshape(2, 5000).t().contiguous()
    found = npu.npu_moe_init_routing(torch.ones(5000, 1), index, torch.from_numpy(experts), 5000)
    order = np.argsort(experts.reshape(-1), kind="stable")
    assert np.array_equal(found[2].numpy(), experts.reshape(-1)[order])
    assert np.array_equal(found[1].numpy()[index.numpy().reshape(-1)[order]], np.arange(10000))


@on_devices
def test_refused_numbers_write_nothing_wild(device: str) -> None:
    x = torch.ones(4, 8, device=device)
    for wild in (-(2**31), 2**31 - 1, -2, 8):
        index = torch.tensor([0, 1, wild, 3, 4, 5, 6, 7], dtype=torch.int32, device=device)
        experts = torch.zeros(4, 2, dtype=torch.int32, device=device)
        with pytest.raises(RuntimeError, match=r"\[npu_moe_init_routing\] expected row_idx in"):
            npu.npu_moe_init_routing(x, index.reshape(4, 2), experts, 4)[0].cpu()
        rows = torch.ones(8, 8, device=device)
        with pytest.raises(RuntimeError, match=r"\[npu_moe_finalize_routing\] expected expanded_"):
            npu.npu_moe_finalize_routing(rows, None, None, None, None, index, None, 2, 2).cpu()
        counts = torch.tensor([[1, wild]], device=device)
        with pytest.raises(RuntimeError, match=r"\[npu_moe_re_routing\] expected expert_token_num"):
            npu.npu_moe_re_routing(x, counts)[0].cpu()


def test_more_places_than_int32_numbers_are_refused() -> None:
    tokens = 210_000
    x, experts = torch.empty(tokens, 0), torch.zeros(tokens, 1, dtype=torch.int32)
    options = {"expert_num": 10240, "drop_pad_mode": 1, "expert_capacity": tokens}
    for device in ("cpu", "meta"):
        with pytest.raises(RuntimeError, match=r"expected at most 2147483647 rows, got 2150400000"):
            npu.npu_moe_init_routing_v2(x.to(device), experts.to(device), **options)
