"""npu_fused_causal_conv1d against torch's convolution in float64, and against itself in parts.

The samples of the definition are run on every path by test_ops.py; these calls are larger.
"""

from __future__ import annotations

from typing import Any

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.errors import ArgumentError
from torch.nn import functional

DEVICES = ["cpu", *(["npu"] if torch_device.is_built() else [])]
devices = pytest.mark.parametrize("device", DEVICES)
# Of results of size 1: sums of a few products in float32, and one rounding to the others.
ACCURACY = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
BLOCKS = ("block_idx_first_scheduled_token", "block_idx_last_scheduled_token", "initial_state_idx")


def _tensors(
    tokens: int, channels: int, taps: int, rows: int, entries: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(tokens + taps)
    x, weight, states = (
        torch.randn(*shape, generator=make).to(dtype)
        for shape in ((tokens, channels), (taps, channels), (rows, entries, channels))
    )
    return x, weight, states


def _ints(**lists: Any) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values, dtype=torch.int32) for name, values in lists.items()}


def _run(
    device: str, x: torch.Tensor, weight: torch.Tensor, states: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results and the states after the call; those that are given stay."""
    given = {n: o.to(device) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    states = states.clone().to(device)
    y = onnxruntime_npu.npu_fused_causal_conv1d(x.to(device), weight.to(device), states, **given)
    return y.cpu(), states.cpu()


def _formula(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return SiLU of the convolution of one sequence in float64, and its last state."""
    taps, channels = weight.shape
    padded = torch.cat([state, x]).double()
    kernel = weight.double().t()[:, None]
    y = functional.conv1d(padded.t()[None], kernel, bias.double(), groups=channels)
    return functional.silu(y[0].t()), padded[len(padded) - (taps - 1) :]


@devices
@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize(("channels", "taps"), [(512, 4), (300, 3), (67, 2)])
def test_results_are_those_of_a_convolution(
    channels: int, taps: int, dtype: torch.dtype, device: str
) -> None:
    lengths, rows = [1, 200, 2, 0, 65, 1], [4, 0, 6, 3, 1, 5]
    bounds = torch.tensor([0, *lengths]).cumsum(0).tolist()
    x, weight, states = _tensors(bounds[-1], channels, taps, 7, taps - 1, dtype)
    bias = x[7] + 1
    y, after = _run(
        device,
        x,
        weight,
        states,
        bias=bias,
        activation="silu",
        **_ints(query_start_loc=bounds, cache_indices=rows),
    )
    expected = states.double()
    limit = ACCURACY[dtype]
    for begin, end, row in zip(bounds, bounds[1:], rows, strict=False):
        if begin == end:
            continue
        right, expected[row] = _formula(x[begin:end], weight, bias, states[row])
        torch.testing.assert_close(y[begin:end].double(), right, rtol=limit, atol=limit)
    assert y.dtype == dtype
    assert torch.equal(after.double(), expected)


@devices
def test_a_prompt_and_its_continuation_are_one_sequence(device: str) -> None:
    x, weight, states = _tensors(150, 96, 4, 1, 3, torch.float32)
    whole, last = _run(device, x, weight, states, **_ints(query_start_loc=[0, 150]))
    parts, state = [], states
    for begin, end in ((0, 100), (100, 101), (101, 103), (103, 150)):
        part, state = _run(
            device, x[begin:end], weight, state, **_ints(query_start_loc=[0, end - begin])
        )
        parts.append(part)
    # float32 arithmetic in another order on the CPU
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-5)
    assert torch.equal(state, last)


@devices
def test_steps_go_on_after_the_accepted_drafts(device: str) -> None:
    """Each step has three tokens, of which the next step keeps those that were accepted."""
    x, weight, states = _tensors(9, 40, 4, 2, 5, torch.float32)
    accepted, state, kept = [2, 1, 3], states, []
    for step in range(3):
        before = 3 if step == 0 else accepted[step - 1]
        tokens = x[3 * step : 3 * step + 3]
        y, state = _run(
            device,
            tokens[None],
            weight,
            state,
            **_ints(cache_indices=[1], num_accepted_tokens=[before]),
        )
        kept.append((tokens[: accepted[step]], y[0, : accepted[step]]))
    sequence, found = (torch.cat(parts) for parts in zip(*kept, strict=True))
    right, _ = _run(
        device,
        sequence,
        weight,
        states[1:, 2:].contiguous(),
        **_ints(query_start_loc=[0, len(sequence)]),
    )
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    assert torch.equal(state[0], states[0])


@devices
def test_blocks_keep_the_states_at_their_ends(device: str) -> None:
    """A prompt of 10 tokens after 6 others, in blocks of 4: ends after 2 and 6 of its tokens."""
    x, weight, states = _tensors(10, 40, 4, 8, 3, torch.bfloat16)
    numbers = _ints(cache_indices=[[7, 5, 2, 0]], num_computed_tokens=[6])
    numbers |= _ints(**dict(zip(BLOCKS, ([1], [3], [1]), strict=True)))
    y, after = _run(
        device, x, weight, states, block_size=4, **numbers, **_ints(query_start_loc=[0, 10])
    )
    expected = states.clone()
    for row, tokens in ((5, 2), (2, 6), (0, 10)):
        part = _ints(query_start_loc=[0, tokens], cache_indices=[5])
        right, alone = _run(device, x[:tokens], weight, states, **part)
        expected[row] = alone[5]
    assert torch.equal(y, right)
    assert torch.equal(after, expected)


@devices
def test_a_view_of_the_states_is_written(device: str) -> None:
    x, weight, states = _tensors(5, 24, 3, 4, 2, torch.float32)
    numbers = _ints(query_start_loc=[0, 1, 5], cache_indices=[3, 1])
    y, after = _run(device, x, weight, states, **numbers)
    whole = torch.zeros(4, 24, 4, device=device)
    view = whole[:, :, 1:3].transpose(1, 2)
    view.copy_(states)
    given = {name: t.to(device) for name, t in numbers.items()}
    again = onnxruntime_npu.npu_fused_causal_conv1d(x.to(device), weight.to(device), view, **given)
    assert torch.equal(again.cpu(), y)
    assert torch.equal(view.cpu(), after)
    assert not whole[:, :, [0, 3]].any()


@devices
@pytest.mark.parametrize(
    ("bounds", "rows"),
    [([0, 2, 4], [1, 1]), ([0, 2, 4], [1, 6]), ([0, 3, 2], [0, 1]), ([0, 2, 2**31 - 1], [0, 1])],
    ids=["one_row_twice", "no_row", "decreasing", "beyond_x"],
)
def test_a_refused_call_changes_no_state(bounds: list[int], rows: list[int], device: str) -> None:
    x, weight, states = (t.to(device) for t in _tensors(4, 24, 3, 4, 2, torch.float32))
    numbers = _ints(query_start_loc=bounds, cache_indices=rows)
    before = states.clone()
    with pytest.raises(
        (ArgumentError, RuntimeError), match=r"\[npu_fused_causal_conv1d\] expected"
    ):
        onnxruntime_npu.npu_fused_causal_conv1d(
            x, weight, states, **{name: t.to(device) for name, t in numbers.items()}
        ).cpu()
    assert torch.equal(states.cpu(), before.cpu())


@devices
def test_skipped_sequences_keep_their_rows(device: str) -> None:
    x, weight, states = _tensors(6, 24, 3, 4, 2, torch.float32)
    numbers = _ints(
        query_start_loc=[0, 2, 2, 5], cache_indices=[2, 77, 1], num_computed_tokens=[-5, -5, 9]
    )
    numbers["num_computed_tokens"][0] = 4
    y, after = _run(device, x, weight, states, pad_slot_id=2, **numbers)
    right, alone = _run(
        device, x[2:5], weight, states, **_ints(query_start_loc=[0, 3], cache_indices=[1])
    )
    assert torch.equal(y[2:5], right)
    assert not y[:2].any()
    assert not y[5:].any()
    assert torch.equal(after, alone)
