"""Indices: int32, into 0-d tensors, and mismatched ones."""

import pytest
import torch
from against_cpu import equal_on_cpu
from onnxruntime_npu import torch_device

INDEX_ERRORS = {
    "indices": lambda x, i: x[i([0, 2]), i([1, 0, 1])],
    "mask": lambda x, i: x[i([True, False, True]), i([0, 1, 2])],
    "values": lambda x, i: x.index_put_((i([0, 2]), i([1, 0])), i([[[1.0]], [[2.0]], [[3.0]]])),
    "dtypes": lambda x, i: x.index_put_((i([0]),), i([1])),
    "empty": lambda x, i: x[:0][i([0])],
}


def test_int32_classes_and_indices_are_accepted():
    scores, classes = torch.randn(4, 5).log_softmax(1), torch.tensor([1, 0, 4, 2])
    expected = torch.nn.functional.nll_loss(scores, classes)
    leaf = scores.npu().requires_grad_()
    got = torch.nn.functional.nll_loss(leaf, classes.int().npu())
    got.backward()
    torch.testing.assert_close(got.cpu().detach(), expected)
    hot = torch.nn.functional.one_hot(classes.int().npu(), 5)
    assert torch.equal(hot.cpu(), torch.nn.functional.one_hot(classes, 5))
    assert torch.equal(torch.nn.functional.one_hot(classes.npu()).cpu(), hot.cpu())
    put = torch.zeros(6).npu().put_(torch.tensor([1, 4]).int().npu(), torch.ones(2).npu())
    assert put.tolist() == [0, 1, 0, 0, 1, 0]
    margin = torch.nn.functional.multilabel_margin_loss
    target = torch.tensor([[1, 0, -1, 2, 3]] * 4)
    torch.testing.assert_close(
        margin(scores.npu(), target.int().npu()).cpu(), margin(scores, target)
    )


@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize("places", [(), (1,)])
def test_gather_scatter_and_sort_of_0d_tensors(shape, places):
    x, index = torch.rand(shape), torch.zeros(places, dtype=torch.int64)
    source = torch.rand(places)
    torch_device.reset_fallback_counts()
    equal_on_cpu(lambda x, i: x.gather(0, i), x, index)
    equal_on_cpu(lambda x, i, s: x.scatter(0, i, s), x, index, source)
    equal_on_cpu(lambda x, i, s: x.scatter_add(0, i, s), x, index, source)
    equal_on_cpu(lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), x, index, source)
    equal_on_cpu(lambda x: x.sort(), x)
    equal_on_cpu(lambda x: x.topk(1), x)
    assert not torch_device.fallback_counts()


@pytest.mark.parametrize("case", INDEX_ERRORS)
def test_mismatched_indices_and_values_are_refused_like_torch(case):
    def error(device):
        with pytest.raises((RuntimeError, IndexError)) as raised:
            INDEX_ERRORS[case](
                torch.zeros(3, 3, device=device), lambda v: torch.tensor(v, device=device)
            )
        return raised.type, str(raised.value)

    assert error("npu") == error("cpu")


# Elements are written in no order: what is read as a value or an index may be another one by then.
OVERLAPPING = {
    "value": lambda x: x.index_put_((torch.tensor([0, 1, 2]).npu(),), x[1:4]),
    "index": lambda x: x.index_put_((x[:3],), torch.tensor(7).npu()),
    "added": lambda x: x.index_put_((torch.tensor([0, 1]).npu(),), x[:2], accumulate=True),
    "complex": lambda x: (y := x.cfloat()).index_put_((x[:2],), y[1:3]),
    "put": lambda x: x.put_(torch.tensor([0, 1]).npu(), x[1:3]),
    "put index": lambda x: x.put_(x[:2], torch.tensor([5, 6]).npu()),
    "select": lambda x: torch.index_select(x, 0, torch.tensor([1, 0]).npu(), out=x[:2]),
    "select index": lambda x: torch.index_select(x + 1, 0, x, out=x),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_memory_that_is_read_and_written_is_refused(name):
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        OVERLAPPING[name](torch.arange(4, device="npu"))


def test_parts_of_one_storage_that_do_not_overlap_are_taken():
    x = torch.arange(6, device="npu")
    x[4:].index_put_((x[:2],), x[2:4])
    assert x.tolist() == [0, 1, 2, 3, 2, 3]
