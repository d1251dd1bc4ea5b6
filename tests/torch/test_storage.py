"""Storages: ownership of memory, moves, and filling of new memory."""

import pytest
import torch
from null_backend import computed


@pytest.mark.no_values
def test_parameter_data_can_move_to_the_device():
    layer = torch.nn.PReLU()
    layer.weight.data = layer.weight.data.npu()
    assert layer.weight.device.type == "npu"
    x = torch.tensor([-2.0, 4.0]).npu()
    layer(x).sum().backward()
    assert layer.weight.grad.item() == computed(-2)
    layer.weight.data = layer.weight.data.cpu()
    assert layer.weight.device.type == "cpu"


def test_deterministic_mode_fills_new_memory():
    def check(made, top):
        torch.use_deterministic_algorithms(True)
        try:
            new = made()
        finally:
            torch.use_deterministic_algorithms(False)
        return new.isnan().all().item() if top is None else new.eq(top).all().item()

    assert check(lambda: torch.empty(5, 3, device="npu"), None)
    assert check(lambda: torch.empty(4, dtype=torch.int16, device="npu"), (1 << 15) - 1)
    assert check(lambda: torch.empty_strided((2, 3), (1, 2), device="npu"), None)
    assert check(lambda: torch.zeros(2, device="npu").resize_(6)[2:], None)
    assert not torch.zeros(2, device="npu").isnan().any().item()


@pytest.mark.no_values
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_tensors_of_strided_layout_are_refused():
    parts = [torch.ones(2, 4, device="npu", requires_grad=True), torch.ones(3, 4, device="npu")]
    refused = "no nested tensors of strided layout"
    moved = torch.nested.nested_tensor([[1.0], [2.0, 3.0]], device="npu", requires_grad=True)
    for use in (torch.clone, torch.Tensor.cpu, lambda x: x * 2):
        with pytest.raises(NotImplementedError, match="'NestedTensornpu' backend"):
            use(moved)
    with pytest.raises(RuntimeError, match=refused):
        torch.nested.as_nested_tensor(parts)
    jagged = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    heads = jagged.unflatten(-1, [2, 2]).transpose(1, 2)
    with pytest.raises(RuntimeError, match=refused):
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


@pytest.mark.no_values
def test_is_set_to_compares_memory():
    x = torch.empty(3, 4, device="npu")
    assert torch.empty(0, device="npu").set_(x).is_set_to(x)
    assert not x.clone().is_set_to(x) and not x[1:].is_set_to(x)


@pytest.mark.no_values
def test_allocation_beyond_an_exbibyte_is_refused():
    with pytest.raises(torch.OutOfMemoryError, match="more than 1EB memory"):
        torch.empty(1 << 62, dtype=torch.int8, device="npu")


@pytest.mark.no_values
def test_combined_tensors_have_separate_storages():
    from onnxruntime_npu import utils
    from onnxruntime_npu.torch_npu_compat import formats

    x, y = torch.rand(2, 3).npu(), torch.rand(4).npu()
    both = utils.npu_combine_tensors([x, y])
    assert both.data_ptr() == x.data_ptr() and y.data_ptr() == x.data_ptr() + 24
    assert [formats.get_storage_size(t) for t in (both, x, y)] == [10, 6, 4]
    both.zero_()
    assert y.sum().item() == 0 and utils.is_combined_tensor_valid(both, [x, y])
