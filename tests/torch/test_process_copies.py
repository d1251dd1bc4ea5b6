"""Tensors of npu in messages between processes."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Views of one tensor of npu, scaled by a parameter."""

    def __init__(self) -> None:
        self.table = torch.arange(12.0, device="npu").view(4, 3)
        self.rows = list(self.table)
        self.scale = torch.nn.Parameter(torch.full((), 2.0, device="npu"))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i):
        self.table += 1  # each row is a view of the same copy
        return (self.rows[i] * self.scale).detach().bfloat16(), torch.empty(0, device="npu")


@pytest.mark.filterwarnings("ignore:another process gets a copy")
def test_a_worker_gets_and_returns_copies():
    rows = Rows()
    loader = DataLoader(rows, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    batches = list(loader)
    assert {tensor.device.type for batch in batches for tensor in batch} == {"npu"}
    assert batches[1][1].shape == (2, 0)
    values = torch.cat([batch[0] for batch in batches]).cpu()
    expected = (torch.arange(12.0).view(4, 3) + torch.arange(1.0, 5).view(4, 1)) * 2
    torch.testing.assert_close(values, expected.bfloat16())
    torch.testing.assert_close(rows.table.cpu(), torch.arange(12.0).view(4, 3))  # not the worker's


def test_the_sender_is_told_of_the_copy():
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with torch.npu.stream(torch.npu.Stream()):
        sums = torch.ones(1 << 20, device="npu").cumsum(0)[-3:].clone()
    with pytest.warns(UserWarning, match="another process gets a copy of tensors of npu:0"):
        queue.put((sums, sums[1:]))
    received, view = queue.get()
    assert received.tolist() == [2.0**20 - 2, 2.0**20 - 1, 2.0**20]
    assert view.data_ptr() == received.data_ptr() + 4
    queue.put(torch.ones(2))  # as torch does
    assert queue.get().device.type == "cpu"
