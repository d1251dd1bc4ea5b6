"""What holds for every quantised call: packing loses nothing, rounding errs by half a scale."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import onnxruntime_npu
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

_WORDS = hnp.arrays(np.int32, st.tuples(st.integers(0, 3), st.integers(0, 40)))
# The last of a block, of a piece and of a row beside its neighbours.
_WIDTHS = st.sampled_from([1, 7, 8, 255, 256, 257, 4096, 4104])


def _unpacked(words: np.ndarray) -> np.ndarray:
    nibbles = (words.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    signed = nibbles.astype(np.int32)
    signed[signed > 7] -= 16
    return signed.reshape(*words.shape[:-1], 8 * words.shape[-1])


@given(words=_WORDS)
def test_packing_what_was_unpacked_gives_the_words_back(words: np.ndarray) -> None:
    values = torch.from_numpy(_unpacked(words))
    packed = onnxruntime_npu.npu_convert_weight_to_int4pack(values)
    assert torch.equal(packed, torch.from_numpy(words))
    one = torch.ones(1)
    unpacked = onnxruntime_npu.npu_anti_quant(packed, one, src_dtype=torch.quint4x2)
    assert torch.equal(unpacked.int(), values)


@given(
    seed=st.integers(0, 2**16),
    width=_WIDTHS,
    scale=st.floats(2**-10, 2**10),
    points=st.booleans(),
    divides=st.booleans(),
)
def test_quantised_values_come_back_within_half_a_scale(
    seed: int, width: int, scale: float, points: bool, divides: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    step = torch.tensor([scale])
    # Within the range of int8, its ends excluded, so that nothing saturates.
    x = (torch.rand(3, width, generator=generator) * 200 - 100) * step
    zero = torch.tensor([7], dtype=torch.int32) if points else None
    given_scale = step if divides else 1 / step
    q = onnxruntime_npu.npu_quantize(x, given_scale, zero, torch.qint8, -1, divides)
    back = (q.double() - 7 * points) * step.double()
    # Half a scale, and the quotient's own rounding: 2^-24 of at most 128.
    assert (back - x.double()).abs().max() <= step.double() * (0.5 + 2**-15)


@given(
    seed=st.integers(0, 2**16),
    width=_WIDTHS,
    magnitude=st.floats(2**-20, 2**20),
    mode=st.sampled_from(["pertoken", "perchannel", "pertensor"]),
    int4=st.booleans(),
)
def test_dynamically_quantised_values_come_back_within_half_a_scale(
    seed: int, width: int, magnitude: float, mode: str, int4: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    width = 8 * width if int4 else width
    x = torch.randn(3, width, generator=generator) * magnitude
    x[0] = magnitude  # one value only
    dst_type = torch.quint4x2 if int4 else torch.int8
    axis = {"pertoken": 1, "perchannel": 0, "pertensor": None}[mode]

    def values(y: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(_unpacked(y.numpy())) if int4 else y

    def spread(scale: torch.Tensor) -> torch.Tensor:
        return (scale if axis is None else scale.unsqueeze(axis)).double()

    y, scale = onnxruntime_npu.npu_dynamic_quant(x, dst_type=dst_type, quant_mode=mode)
    error = (values(y).double() * spread(scale) - x.double()).abs()
    # Beside the half: scale and quotient are rounded, 2^-23 of at most 127 together.
    assert (error <= spread(scale) * (0.5 + 2**-15)).all()

    y, scale, offset = onnxruntime_npu.npu_dynamic_quant_asymmetric(
        x, dst_type=dst_type, quant_mode=mode
    )
    error = ((values(y).double() - spread(offset)) * spread(scale) - x.double()).abs()
    # The offset is rounded to its own size, which a narrow range far from 0 makes large.
    rounding = 2**-15 + 2**-21 * spread(offset).abs()
    assert (error <= spread(scale) * (0.5 + rounding)).all()


@pytest.mark.parametrize("mode", ["pertoken", "perchannel", "pertensor"])
def test_nan_and_infinities_make_what_shares_their_scale_zero(mode: str) -> None:
    x = torch.ones(3, 300)
    for value, scale in ((float("nan"), float("nan")), (float("inf"), float("inf"))):
        struck = x.clone()
        struck[1, 270] = value
        y, scales = onnxruntime_npu.npu_dynamic_quant(struck, quant_mode=mode)
        zero = {
            "pertoken": torch.arange(3)[:, None] == 1,
            "perchannel": torch.arange(300) == 270,
            "pertensor": torch.tensor(True),
        }[mode].expand(3, 300)
        assert torch.equal(y, torch.where(zero, 0, 127).to(torch.int8))
        expected = torch.full_like(scales, 1 / 127)
        expected.view(-1)[{"pertoken": 1, "perchannel": 270, "pertensor": 0}[mode]] = scale
        torch.testing.assert_close(scales, expected, rtol=0, atol=0, equal_nan=True)


def test_a_refused_group_index_writes_nothing_wild() -> None:
    x, scale = torch.randn(4, 16), torch.randn(2, 16)
    for ends in ([5, 4], [-(2**63), 4], [2**63 - 1, 2**63 - 1], [3, 2], [1, 2]):
        index = torch.tensor(ends)
        with pytest.raises(RuntimeError, match=r"\[npu_group_quant\] expected group_index"):
            onnxruntime_npu.npu_group_quant(x, scale, index)
        with pytest.raises(RuntimeError, match=r"\[npu_dynamic_quant\] expected group_index"):
            onnxruntime_npu.npu_dynamic_quant(x, smooth_scales=scale, group_index=index)


@given(bits=hnp.arrays(np.uint32, st.integers(0, 20)), rounds=st.integers(0, 1))
def test_packed_scales_decode_to_their_first_19_bits(bits: np.ndarray, rounds: int) -> None:
    scale = torch.from_numpy(bits.view(np.float32).copy())
    packed = onnxruntime_npu.npu_trans_quant_param(scale, None, rounds).numpy()
    assert ((packed >> 46) == 1).all() and not (packed & 0x1FFF).any()
    decoded = (packed & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    assert (np.isnan(decoded) == np.isnan(scale.numpy())).all()
    finite = np.isfinite(scale.numpy()) & (np.abs(scale.numpy()) >= 2**-126)
    kept, given_scale = decoded[finite].astype(np.float64), scale.numpy()[finite].astype(np.float64)
    within = np.abs(kept - given_scale) <= np.abs(given_scale) * 2.0 ** -(10 + rounds)
    # Rounding up the largest floats leaves their range.
    assert (within | ~np.isfinite(kept)).all()
    if not rounds:
        assert (np.abs(kept) <= np.abs(given_scale)).all()
