"""Sparse and quantised tensors, which npu has not: errors name what to do instead."""

import io

import pytest
import torch

PLACES = [[0, 1], [0, 1]]


def sparse_gradient():
    table = torch.ones(3, 2, device="npu", requires_grad=True)
    rows = torch.nn.functional.embedding(torch.tensor([1]).npu(), table, sparse=True)
    rows.sum().backward()


def sparse_checkpoint():
    file = io.BytesIO()
    torch.save(torch.eye(2).to_sparse(), file)
    torch.load(io.BytesIO(file.getvalue()), map_location="npu")


SPARSE = {
    "made": lambda: torch.sparse_coo_tensor(torch.tensor(PLACES).npu(), torch.ones(2).npu()),
    "empty": lambda: torch.empty(2, 2, layout=torch.sparse_coo, device="npu"),
    "converted": lambda: torch.eye(2).npu().to_sparse(),
    "moved": lambda: torch.eye(2).to_sparse().npu(),
    "times dense": lambda: torch.sparse.mm(torch.eye(2).to_sparse(), torch.eye(2).npu()),
    "by rows": lambda: torch.eye(2).npu().to_sparse_csr() @ torch.eye(2).npu(),
    "gradient": sparse_gradient,
    "checkpoint": sparse_checkpoint,
}
QUANTISED = {
    "made": lambda: torch.quantize_per_tensor(torch.ones(2).npu(), 0.1, 0, torch.qint8),
    "moved": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).npu(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_tensors_are_refused(name):
    with pytest.raises(NotImplementedError, match=r"\[aten.*got sparse tensors.*to_dense"):
        SPARSE[name]()
    assert torch.ones(2, device="npu").sum().item() == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_tensors_are_refused(name):
    with pytest.raises(NotImplementedError, match=r"\[aten.*quantised types.*dequantize"):
        QUANTISED[name]()
    assert torch.ones(2, device="npu").sum().item() == 2
