"""Losses with kernels of their own, and their gradients."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_mse_loss_and_its_gradient():
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    for reduction in ("mean", "sum", "none"):
        x, y = a.npu().requires_grad_(), a.clone().requires_grad_()
        loss, expected = (F.mse_loss(t, b.to(t.device), reduction=reduction) for t in (x, y))
        loss.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(loss.detach().cpu(), expected.detach())
        torch.testing.assert_close(x.grad.cpu(), y.grad)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pointwise_losses(dtype, reduction):
    x, y = make(dtype, 4, 6), make(dtype, 4, 6, seed=1).detach()
    check(lambda a, b: F.mse_loss(a, b, reduction=reduction), x, y)
    check(lambda a, b: F.smooth_l1_loss(a, b, beta=0.7, reduction=reduction), x, y)
    check(lambda a, b: F.huber_loss(a, b, delta=0.7, reduction=reduction), x, y)
    check(lambda a, b: F.l1_loss(a, b, reduction=reduction), x, y)
    p, q = x.detach().sigmoid().requires_grad_(), y.sigmoid()
    weight = torch.linspace(0.5, 2, 6).to(dtype)
    check(lambda a, b, w: F.binary_cross_entropy(a, b, w, reduction=reduction), p, q, weight)
    check(lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction=reduction), x, q)


def test_binary_cross_entropy_refuses_values_outside_0_to_1():
    x = torch.tensor([0.5, 1.5], device="npu")
    F.binary_cross_entropy(x, torch.ones(2, device="npu"))
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        torch.npu.synchronize()
    extreme = torch.tensor([0.0, 1.0], device="npu")
    assert F.binary_cross_entropy(extreme, 1 - extreme).item() == 100


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_2d_targets(reduction):
    scores = make(torch.float32, 2, 5, 3, 4)
    target = torch.randint(5, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    target[0, 1] = -100
    weight = torch.linspace(0.5, 2, 5)
    check(lambda s, t, w: F.cross_entropy(s, t, w, reduction=reduction), scores, target, weight)
    with pytest.raises(RuntimeError, match=r"N, H, W"):
        torch.ops.aten.nll_loss2d_forward(scores.npu(), target[:, :2].npu(), None, 1, -100)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_multi_margin_loss(dtype, reduction, p):
    scores, target = make(dtype, 4, 5), torch.tensor([0, 3, 4, 3])
    options = {"reduction": reduction, "p": p}
    weight = torch.linspace(0.5, 2, 5).to(dtype)
    check(lambda s, t: F.multi_margin_loss(s, t, margin=0.75, **options), scores, target)
    check(lambda s, t, w: F.multi_margin_loss(s, t, weight=w, **options), scores, target, weight)
    check(lambda s, t: F.multi_margin_loss(s[1], t[1], **options), scores, target)
    check(lambda s, t: F.multi_margin_loss(s[1, 1], t[0], **options), scores, target)


def test_multi_margin_loss_refuses_what_does_not_fit():
    scores, target = torch.ones(2, 3, device="npu"), torch.tensor([0, 2], device="npu")
    with pytest.raises(RuntimeError, match="inconsistent target size"):
        F.multi_margin_loss(scores, target[:1])
    with pytest.raises(RuntimeError, match="inconsistent weight size"):
        F.multi_margin_loss(scores, target, weight=torch.ones(2, device="npu"))
    with pytest.raises(RuntimeError, match="only p == 1 and p == 2"):
        torch.ops.aten.multi_margin_loss(scores, target, 3)
    F.multi_margin_loss(scores, target + 1)
    with pytest.raises(RuntimeError, match="expected an index"):
        torch.npu.synchronize()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_multilabel_margin_loss(dtype, reduction):
    scores = make(dtype, 4, 6)
    target = torch.tensor(
        [[1, 4, -1, 2, 0, 0], [-1, 3, 3, 3, 3, 3], [5, 4, 3, 2, 1, 0], [2, 2, -1, -1, -1, -1]]
    )
    check(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), scores, target)
    check(lambda x, t: F.multilabel_margin_loss(x[0], t[0], reduction=reduction), scores, target)
    marks = torch.ops.aten.multilabel_margin_loss_forward(scores.npu(), target.npu(), 0)[1]
    expected = torch.ops.aten.multilabel_margin_loss_forward(scores.float(), target, 0)[1]
    assert torch.equal(marks.cpu(), expected.to(dtype))


def test_multilabel_margin_loss_takes_memory_of_its_scores():
    classes = 3000  # a matrix of classes by classes would be 36 MB
    scores = torch.randn(8, classes, device="npu", requires_grad=True)
    target = torch.arange(classes, device="npu").expand(8, classes).clone()
    target[:, 100:] = -1
    torch.npu.synchronize()
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    F.multilabel_margin_loss(scores, target).backward()
    assert torch.npu.max_memory_allocated() - before < 8 * scores.nbytes


def test_wrong_classes_of_multilabel_margin_loss_are_a_device_error():
    scores = torch.randn(2, 3).npu()
    with pytest.raises(RuntimeError, match=r"expected targets in \[-1, 3\), got 3 at 1"):
        F.multilabel_margin_loss(scores, torch.tensor([[0, 3, -1], [0, 1, 2]]).npu()).item()
    with pytest.raises(RuntimeError, match="inconsistent target size"):
        F.multilabel_margin_loss(scores, torch.zeros(2, 4, dtype=torch.long).npu())
