"""npu_advance_step_flashattn whose results share memory with what positions are computed from."""

import pytest
import torch


def test_positions_that_a_result_changes_are_checked_again():
    """The slots of the first sequence become its accepted_num: its next position is far away."""
    seqs, per_seq, blocks, block_size = 2, 2, 4, 8
    count = seqs * per_seq
    on_npu = {"dtype": torch.int64, "device": "npu"}
    tokens, positions, lengths, slots = (torch.zeros(count, **on_npu) for _ in range(4))
    tables = torch.full((seqs, blocks), 1 << 40, **on_npu)
    with pytest.raises(RuntimeError, match=r"expected positions in \[0, 32\)"):
        torch.ops.npu.npu_advance_step_flashattn(
            tokens,
            torch.ones(seqs, per_seq, **on_npu),
            positions,
            lengths,
            slots,
            tables,
            seqs,
            seqs,
            block_size,
            spec_token=torch.ones(seqs, per_seq - 1, **on_npu),
            accepted_num=slots[:seqs],
        )
        torch.npu.synchronize()
