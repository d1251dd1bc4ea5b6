"""The gated delta rule against its formula in float64, and against transformers' chunks.

The samples of the definitions are run on every path by test_ops.py; these calls are larger.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu import torch_device

DEVICES = ["cpu", *(["npu"] if torch_device.is_built() else [])]
# Of results of size 1: sums of 128 products in float32, and one rounding to the others.
ACCURACY = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def _formula(
    q: Any, k: Any, v: Any, beta: Any, states: Any, lengths: list[int], scale: float, g: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the results and the states in float64, head by head and token by token."""
    q, k, v, beta, states, g = (x.double().numpy() for x in (q, k, v, beta, states, g))
    out, final, shared = np.zeros(v.shape), states.copy(), v.shape[1] // q.shape[1]
    begin = 0
    for b, length in enumerate(lengths):
        for h in range(v.shape[1]):
            s = final[b, h]
            for t in range(begin, begin + length):
                key = k[t, h // shared]
                s = s * math.exp(g[t, h])
                s = s + beta[t, h] * np.outer(v[t, h] - s @ key, key)
                out[t, h] = scale * (s @ q[t, h // shared])
            final[b, h] = s
        begin += length
    return out, final


def _call(
    tokens: int, sequences: int, sizes: tuple[int, int, int, int], dtype: torch.dtype, seed: int = 0
) -> dict[str, torch.Tensor]:
    key_heads, heads, width, value_width = sizes
    make = torch.Generator().manual_seed(seed)
    q, k = (
        torch.nn.functional.normalize(torch.randn(tokens, key_heads, width, generator=make), dim=-1)
        for _ in range(2)
    )
    tensors = {
        "query": q,
        "key": k,
        "value": torch.randn(tokens, heads, value_width, generator=make),
        "beta": torch.rand(tokens, heads, generator=make),
        "initial_state": torch.randn(sequences, heads, value_width, width, generator=make),
    }
    tensors = {name: t.to(dtype) for name, t in tensors.items()}
    return {**tensors, "g": -torch.rand(tokens, heads, generator=make)}


def _run(device: str, **arguments: Any) -> list[torch.Tensor]:
    given = {n: a.to(device) if isinstance(a, torch.Tensor) else a for n, a in arguments.items()}
    return [t.cpu() for t in onnxruntime_npu.npu_chunk_gated_delta_rule(**given)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("sizes", [(2, 4, 128, 128), (1, 3, 100, 37)], ids=["model", "odd"])
def test_results_are_those_of_the_formula(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> None:
    lengths = [1, 30, 0, 9]
    call = _call(sum(lengths), len(lengths), sizes, dtype)
    call["actual_seq_lengths"] = torch.tensor(lengths, dtype=torch.int32)
    scale = sizes[2] ** -0.5
    expected = _formula(
        *(call[n] for n in ("query", "key", "value", "beta", "initial_state")),
        lengths,
        scale,
        call["g"],
    )
    for found, right in zip(_run(device, **call, scale=scale), expected, strict=True):
        assert found.dtype == dtype
        limit = ACCURACY[dtype]
        torch.testing.assert_close(found.double(), torch.tensor(right), rtol=limit, atol=limit)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_omitted_is_one_or_nothing(device: str) -> None:
    call = {n: t for n, t in _call(9, 1, (2, 4, 16, 8), torch.bfloat16).items() if n != "g"}
    q, k, v = (call[n] for n in ("query", "key", "value"))
    out, state = _run(device, query=q, key=k, value=v)
    ones, zeros = torch.ones(9, 4), torch.zeros(9, 4)
    expected = _formula(q, k, v, ones, torch.zeros(1, 4, 8, 16), [9], 1.0, zeros)
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    for found, right in ((out, expected[0]), (state, expected[1])):
        limit = ACCURACY[found.dtype]
        torch.testing.assert_close(found.double(), torch.tensor(right), rtol=limit, atol=limit)


@pytest.mark.parametrize("device", DEVICES)
def test_a_prompt_and_its_continuation_are_one_sequence(device: str) -> None:
    call = _call(12, 1, (2, 4, 32, 32), torch.float32)
    whole = _run(device, **call)
    parts, state = [], call.pop("initial_state")
    for begin, end in ((0, 10), (10, 11), (11, 12)):
        part = {name: t[begin:end] for name, t in call.items()}
        out, state = _run(device, **part, initial_state=state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts), whole[0], rtol=0, atol=0)
    torch.testing.assert_close(state, whole[1], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_results_are_those_of_chunks_in_transformers(device: str) -> None:
    model = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    call = _call(150, 1, (4, 4, 64, 48), torch.float32)
    names = ("query", "key", "value", "g", "beta")
    # Its state is [key, value] of each head.
    out, state = model.torch_chunk_gated_delta_rule(
        *(call[n][None] for n in names),
        initial_state=call["initial_state"].transpose(2, 3),
        output_final_state=True,
    )
    found = _run(device, **call, scale=64**-0.5)
    torch.testing.assert_close(found[0], out[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], state.transpose(2, 3), rtol=1e-4, atol=1e-5)


SPECULATIVE = {
    "actual_seq_lengths": torch.tensor([3, 1, 4], dtype=torch.int32),
    "ssm_state_indices": torch.tensor([7, 2, 9, 0, 4, 5, 8, 1], dtype=torch.int32),
    "num_accepted_tokens": torch.tensor([2, 1, 4], dtype=torch.int32),
}


def _blocks(dtype: torch.dtype, sizes: tuple[int, int, int, int]) -> dict[str, torch.Tensor]:
    call = _call(8, 10, sizes, dtype)
    state = call.pop("initial_state")
    return {**call, "state": state, **SPECULATIVE}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("sizes", [(2, 4, 128, 128), (1, 3, 100, 37)], ids=["model", "odd"])
def test_each_token_stores_its_state(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> None:
    call = {n: t.to(device) for n, t in _blocks(dtype, sizes).items()}
    before, limit = call["state"].cpu().clone(), ACCURACY[dtype]
    out = onnxruntime_npu.npu_recurrent_gated_delta_rule(**call)
    state, blocks = call["state"].cpu(), SPECULATIVE["ssm_state_indices"].tolist()
    begin = 0
    for length, accepted in zip([3, 1, 4], [2, 1, 4], strict=True):
        first = before[blocks[begin + accepted - 1]][None]
        for count in range(1, length + 1):  # the tokens until each, anew
            part = slice(begin, begin + count)
            of_tokens = (call[n][part].cpu() for n in ("query", "key", "value", "beta"))
            gates = call["g"][part].cpu()
            right = _formula(*of_tokens, first, [count], sizes[2] ** -0.5, gates)
            found = out[begin + count - 1].cpu(), state[blocks[begin + count - 1]]
            for a, b in zip(found, (right[0][-1], right[1][0]), strict=True):
                torch.testing.assert_close(a.double(), torch.tensor(b), rtol=limit, atol=limit)
        begin += length
    others = [3, 6]
    assert torch.equal(state[others], before[others])


@pytest.mark.parametrize("device", DEVICES)
def test_gates_of_elements_are_those_of_heads_where_equal(device: str) -> None:
    call = {n: t.to(device) for n, t in _blocks(torch.float32, (2, 4, 36, 20)).items()}
    run = onnxruntime_npu.npu_recurrent_gated_delta_rule_functional
    right, parts = run(**call), {**call, "g": call["g"] / 4}
    found = run(**parts, gk=(call["g"] * 0.75)[:, :, None].expand(8, 4, 36).contiguous())
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_the_functional_form_leaves_the_state(device: str) -> None:
    call = {n: t.to(device) for n, t in _blocks(torch.bfloat16, (2, 4, 16, 8)).items()}
    before = call["state"].clone()
    out, state = onnxruntime_npu.npu_recurrent_gated_delta_rule_functional(**call)
    assert torch.equal(call["state"].cpu(), before.cpu())
    right = onnxruntime_npu.npu_recurrent_gated_delta_rule(**call)
    assert torch.equal(out.cpu(), right.cpu())
    assert torch.equal(state.cpu(), call["state"].cpu())


@pytest.mark.parametrize("device", DEVICES)
def test_one_block_per_sequence_is_a_sequence_of_chunks(device: str) -> None:
    call = {n: t.to(device) for n, t in _call(5, 2, (2, 4, 32, 24), torch.float32).items()}
    lengths = torch.tensor([2, 3], dtype=torch.int32, device=device)
    blocks = torch.tensor([1, 1, 0, 0, 0], dtype=torch.int32, device=device)
    state = call.pop("initial_state")
    right = onnxruntime_npu.npu_chunk_gated_delta_rule(
        **call, initial_state=state.flip(0).contiguous(), actual_seq_lengths=lengths
    )
    out = onnxruntime_npu.npu_recurrent_gated_delta_rule(
        **call, state=state, scale=1.0, actual_seq_lengths=lengths, ssm_state_indices=blocks
    )
    torch.testing.assert_close(out.cpu(), right[0].cpu(), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(state.cpu(), right[1].flip(0).cpu(), rtol=2e-5, atol=2e-5)
