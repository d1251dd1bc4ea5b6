"""Refused matmul arguments."""

import pytest
import torch


@pytest.mark.parametrize(
    "function, message",
    [
        (torch.mm, "mat1 and mat2 must have the same dtype, but got Half and Float"),
        (torch.nn.functional.linear, "mat1 and mat2 must have the same dtype"),
        (lambda a, b: torch.bmm(a[None], b[None]), "expected scalar type Half but found Float"),
        (lambda a, b: torch.addmm(b, a, b), "mat1 and mat2 must have the same dtype"),
    ],
)
def test_matmul_of_two_dtypes_is_refused_with_torch_message(function, message):
    with pytest.raises(RuntimeError, match=message):
        function(torch.ones(2, 2).half().npu(), torch.ones(2, 2).npu())
