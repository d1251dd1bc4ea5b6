"""What the public conformance suites found, each in a small test of ours."""

import pytest

torch = pytest.importorskip("torch")

from onnxruntime_npu import torch_device  # noqa: E402


def equal_on_cpu(function, *tensors, rtol=1e-5, atol=1e-5):
    """The function of npu tensors gives what the function of their CPU twins gives."""
    got = function(*(t.npu() for t in tensors))
    expected = function(*tensors)
    if isinstance(expected, torch.Tensor):
        got, expected = [got], [expected]
    for g, e in zip(got, expected, strict=True):
        assert g.device.type == "npu"
        torch.testing.assert_close(g.cpu(), e, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operators_that_the_cpu_lacks_in_16_bits_compute_in_float32(dtype):
    x = torch.randn(2, 3, 8, 8, dtype=dtype).npu()
    got = torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", antialias=True)
    wide = x.cpu().float()
    expected = torch.nn.functional.interpolate(
        wide, scale_factor=2, mode="bilinear", antialias=True
    )
    assert got.dtype == dtype
    assert torch.equal(got.cpu(), expected.to(dtype))  # one rounding, no more
    pooled = torch.nn.functional.avg_pool3d(x, 2)
    assert torch.equal(pooled.cpu(), torch.nn.functional.avg_pool3d(wide, 2).to(dtype))


def test_a_widened_fallback_writes_what_it_is_given():
    x = torch.randn(6).half()
    out = torch.empty(12, dtype=torch.half, device="npu")[::2]
    assert torch.cumprod(x.npu(), 0, out=out) is out
    assert torch.equal(out.cpu(), torch.cumprod(x.float(), 0).half())
    inplace = x.npu()
    assert inplace.cumprod_(0) is inplace
    assert torch.equal(inplace.cpu(), out.cpu())
    assert torch.cumsum(x.npu(), 0, dtype=torch.float32).dtype == torch.float32
    assert torch.logcumsumexp(x.npu(), 0).dtype == torch.half


def test_a_fallback_into_a_view_fills_the_view():
    x = torch.zeros(2, 3, device="npu")
    torch.logspace(0, 3, 4, base=2, out=x.narrow(1, 1, 2))
    assert x.tolist() == [[0, 1, 2], [0, 4, 8]]


def test_a_fallback_refuses_tensors_of_two_devices():
    matrix, vector = torch.eye(3).npu(), torch.rand(3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.linalg.householder_product(matrix, vector)


def test_conjugates_and_negatives_are_copied():
    x = torch.randn(3, 4, dtype=torch.complex64)
    n = x.npu()
    assert torch.equal(n.conj().cpu(), x.conj())
    assert torch.equal(n.conj().clone().cpu(), x.conj())
    assert torch.equal(n.conj().imag.clone().cpu(), x.conj().imag)
    assert torch.equal(x.conj().npu().cpu(), x.conj())
    n.conj().copy_(x.npu())
    assert torch.equal(n.cpu(), x.conj())
    equal_on_cpu(lambda t: t.conj() * t, x)


def test_gradients_of_complex_numbers():
    def gradient(size, angle):
        size, angle = size.requires_grad_(), angle.requires_grad_()
        torch.polar(size, angle).real.sum().backward()
        return size.grad, angle.grad

    equal_on_cpu(gradient, torch.rand(3), torch.rand(3))


@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_batch_norm_updates_its_running_statistics(shape):
    x = torch.randn(shape)
    ours = torch.nn.BatchNorm1d(3) if len(shape) < 4 else torch.nn.BatchNorm2d(3)
    theirs = type(ours)(3)
    ours.npu()
    for _ in range(2):
        theirs(x)
        ours(x.npu())
    torch.testing.assert_close(ours.running_mean.cpu(), theirs.running_mean)
    torch.testing.assert_close(ours.running_var.cpu(), theirs.running_var)
    torch.testing.assert_close(ours.eval()(x.npu()).cpu(), theirs.eval()(x))
    with torch.autocast("npu", enabled=False):
        half = ours.half().train()(x.half().npu())
    assert half.dtype == torch.half


def test_batch_norm_has_gradients():
    def gradients(x, weight):
        x, weight = x.requires_grad_(), weight.requires_grad_()
        y = torch.nn.functional.batch_norm(x, None, None, weight, None, training=True)
        (y * y.detach().cos()).sum().backward()
        return y.detach(), x.grad, weight.grad

    equal_on_cpu(gradients, torch.randn(4, 3, 5), torch.rand(3), rtol=1e-4, atol=1e-5)


def test_parts_of_a_batch_norm_over_processes_make_the_whole():
    x, grad = torch.randn(6, 3, 4), torch.randn(6, 3, 4)
    halves = [h.npu() for h in x.chunk(2)]
    stats = [torch.batch_norm_stats(h, 1e-5) for h in halves]
    means, deviations = (torch.stack(part) for part in zip(*stats, strict=True))
    running = torch.zeros(3).npu(), torch.ones(3).npu()
    counts = torch.tensor([12.0, 12.0]).npu()
    mean, deviation = torch.batch_norm_gather_stats_with_counts(
        halves[0], means, deviations, *running, 0.1, 1e-5, counts
    )
    twin = torch.nn.BatchNorm1d(3)
    x.requires_grad_()
    expected = twin(x)
    expected.backward(grad)
    torch.testing.assert_close(running[1].cpu(), twin.running_var)
    got = torch.batch_norm_elemt(halves[0], None, None, mean, deviation, 1e-5)
    torch.testing.assert_close(got.cpu(), expected[:3].detach(), rtol=1e-5, atol=1e-5)
    grads = [g.npu() for g in grad.chunk(2)]
    sums = [
        torch.batch_norm_backward_reduce(g, h, mean, deviation, None, True, True, True)
        for g, h in zip(grads, halves, strict=True)
    ]
    total, centred = sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]
    dx = torch.batch_norm_backward_elemt(
        grads[0], halves[0], mean, deviation, None, total, centred, counts.int()
    )
    torch.testing.assert_close(dx.cpu(), x.grad[:3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((sums[0][2] + sums[1][2]).cpu(), twin.weight.grad)
    torch.testing.assert_close((sums[0][3] + sums[1][3]).cpu(), twin.bias.grad)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_and_their_gradients(kind):
    cpu = getattr(torch.nn, kind)(5, 4, num_layers=2, bidirectional=True)
    npu = getattr(torch.nn, kind)(5, 4, num_layers=2, bidirectional=True)
    npu.load_state_dict(cpu.state_dict())
    npu.npu()
    x = torch.randn(3, 2, 5)
    expected, got = cpu(x)[0], npu(x.npu())[0]
    torch.testing.assert_close(got.cpu(), expected)
    (expected.sin()).sum().backward()
    (got.sin()).sum().backward()
    for (name, e), g in zip(cpu.named_parameters(), npu.parameters(), strict=True):
        torch.testing.assert_close(g.grad.cpu(), e.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_int32_classes_and_indices_are_taken():
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


def test_normal_of_tensors_is_of_the_devices_generator():
    mean, deviation = torch.rand(2, 3).npu(), torch.rand(2, 1).npu()
    for arguments in ((mean, deviation), (mean, 2.0), (3.0, deviation)):
        torch.npu.manual_seed(5)
        first = torch.normal(*arguments)
        torch.rand(3)  # the CPU's generator is another
        torch.npu.manual_seed(5)
        assert torch.equal(torch.normal(*arguments).cpu(), first.cpu())
    many = torch.normal(torch.full((20000,), 3.0).npu(), torch.full((20000,), 2.0).npu()).cpu()
    assert abs(many.mean() - 3) < 0.1 and abs(many.std() - 2) < 0.1
    with pytest.raises(RuntimeError, match="std >= 0"):
        torch.normal(mean, -deviation)


def test_distributions_of_the_devices_generator():
    x = torch.empty(20000, device="npu")
    assert abs(x.cauchy_(1.0, 2.0).median().item() - 1) < 0.15
    assert abs(x.log_normal_(0.5, 0.25).log().mean().item() - 0.5) < 0.02
    assert abs(x.geometric_(0.25).mean().item() - 4) < 0.2 and x.min().item() == 1
    with pytest.raises(RuntimeError, match="expects p to be in"):
        x.geometric_(1.5)


def test_random_integers_stay_within_what_a_dtype_holds():
    for dtype, top in ((torch.half, 1 << 11), (torch.float, 1 << 24), (torch.int16, (1 << 15) - 1)):
        x = torch.empty(4000, dtype=dtype, device="npu").random_(8, None).cpu().double()
        assert x.min() >= 8 and 0.9 * top < x.max() <= top
    with pytest.warns(UserWarning, match="to - 1 is out of bounds"):
        x = torch.empty(4000, dtype=torch.half, device="npu").random_(0, 42000)
    assert x.max().item() < 42000
    with pytest.raises(RuntimeError, match="to - 1 is out of bounds"):
        torch.empty(3, dtype=torch.int8, device="npu").random_(0, 1000)


def test_a_parameters_data_may_move_to_the_device():
    layer = torch.nn.PReLU()
    layer.weight.data = layer.weight.data.npu()
    assert layer.weight.device.type == "npu"
    x = torch.tensor([-2.0, 4.0]).npu()
    layer(x).sum().backward()
    assert layer.weight.grad.item() == -2
    layer.weight.data = layer.weight.data.cpu()
    assert layer.weight.device.type == "cpu"


def test_new_memory_is_filled_when_determinism_asks_for_it():
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


def test_is_set_to_looks_at_the_memory():
    x = torch.empty(3, 4, device="npu")
    assert torch.empty(0, device="npu").set_(x).is_set_to(x)
    assert not x.clone().is_set_to(x) and not x[1:].is_set_to(x)


@pytest.mark.usefixtures("still_memory")
def test_swapped_memory_does_not_count_against_the_device():
    import onnxruntime_npu

    before = torch.npu.memory_allocated()
    x = onnxruntime_npu.empty_with_swapped_memory((256, 256), dtype=torch.half, device="npu:0")
    assert torch.npu.memory_allocated() == before
    assert x.device.type == "npu" and x.dtype == torch.half and x.shape == (256, 256)
    y = x.fill_(2) * 3
    del x
    assert y.eq(6).all().item()
    assert onnxruntime_npu.empty_with_swapped_memory((0, 2)).numel() == 0
    with pytest.raises(RuntimeError, match="expected an npu, got cpu"):
        onnxruntime_npu.empty_with_swapped_memory((2,), device="cpu")


def test_a_legacy_type_takes_a_size():
    assert torch.npu.FloatTensor(torch.Size([2, 3])).shape == (2, 3)
    assert torch.npu.FloatTensor([2, 3]).tolist() == [2, 3]


def test_pinned_memory_that_should_expand_is_said_to_be_missing(run_python):
    def output(value):
        conf = f"pin_memory_expandable_segments:{value}"
        return run_python(
            "import onnxruntime_npu; onnxruntime_npu.npu.init()",
            PYTORCH_NPU_ALLOC_CONF=conf,
            ORT_NPU_LOG="warning",
        )

    code, text = output(True)
    assert code == 0 and "the host NPU does not support this feature" in text
    assert output(False) == (0, "")


def test_a_legacy_type_without_a_device_is_on_the_current_one():
    assert torch.npu.FloatTensor(2, device=None).device == torch.device("npu:0")
    assert torch.npu.FloatTensor(2, device=0).device == torch.device("npu:0")


def test_a_device_of_another_type_is_named_as_it_is_written():
    with pytest.raises(ValueError, match="Expected a npu device, but got: cpu;"):
        torch.npu.current_stream(torch.device("cpu"))


def test_combined_tensors_have_storages_of_their_own():
    from onnxruntime_npu import utils
    from onnxruntime_npu.torch_interop import formats

    x, y = torch.rand(2, 3).npu(), torch.rand(4).npu()
    both = utils.npu_combine_tensors([x, y])
    assert both.data_ptr() == x.data_ptr() and y.data_ptr() == x.data_ptr() + 24
    assert [formats.get_storage_size(t) for t in (both, x, y)] == [10, 6, 4]
    both.zero_()
    assert y.sum().item() == 0 and utils.is_combined_tensor_valid(both, [x, y])


def test_more_than_an_exbibyte_is_refused_as_such():
    with pytest.raises(torch.OutOfMemoryError, match="more than 1EB memory"):
        torch.empty(1 << 62, dtype=torch.int8, device="npu")


def test_options_of_super_kernels_are_checked():
    graph = torch.npu.NPUGraph()
    graph.super_kernel_optimize({"preload_code": 1, "dcci_after_kernel_end": ["a"]}, None)
    for bad in ({"x": 1}, {"preload_code": "1"}, {"dcci_after_kernel_end": [1]}, "x"):
        with pytest.raises(RuntimeError, match="optimize_options"):
            graph.super_kernel_optimize(optimize_options=bad)
    with pytest.raises(RuntimeError, match="sub_key 'x'"):
        graph.super_kernel_optimize({"aggressive_opt_strategies": {"x": 1}})


@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize("places", [(), (1,)])
def test_scalars_are_gathered_scattered_and_sorted(shape, places):
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


INDEX_ERRORS = {
    "indices": lambda x, i: x[i([0, 2]), i([1, 0, 1])],
    "mask": lambda x, i: x[i([True, False, True]), i([0, 1, 2])],
    "values": lambda x, i: x.index_put_((i([0, 2]), i([1, 0])), i([[[1.0]], [[2.0]], [[3.0]]])),
    "dtypes": lambda x, i: x.index_put_((i([0]),), i([1])),
    "empty": lambda x, i: x[:0][i([0])],
}


@pytest.mark.parametrize("case", INDEX_ERRORS)
def test_indices_and_values_that_do_not_fit_are_refused_as_by_torch(case):
    def error(device):
        with pytest.raises((RuntimeError, IndexError)) as raised:
            INDEX_ERRORS[case](
                torch.zeros(3, 3, device=device), lambda v: torch.tensor(v, device=device)
            )
        return raised.type, str(raised.value)

    assert error("npu") == error("cpu")


@pytest.mark.parametrize(
    "function, message",
    [
        (torch.mm, "mat1 and mat2 must have the same dtype, but got Half and Float"),
        (torch.nn.functional.linear, "mat1 and mat2 must have the same dtype"),
        (lambda a, b: torch.bmm(a[None], b[None]), "expected scalar type Half but found Float"),
        (lambda a, b: torch.addmm(b, a, b), "mat1 and mat2 must have the same dtype"),
    ],
)
def test_products_of_two_types_are_refused_in_the_words_of_torch(function, message):
    with pytest.raises(RuntimeError, match=message):
        function(torch.ones(2, 2).half().npu(), torch.ones(2, 2).npu())


def test_searchsorted_warns_of_copies():
    sorted_rows = torch.arange(6.0).view(3, 2).npu().t()
    with pytest.warns(UserWarning, match="boundary tensor is non-contiguous"):
        torch.searchsorted(sorted_rows, torch.zeros(2, 2).npu())


def test_mish_and_the_loss_of_logits_round_once():
    x = (torch.randn(1000) * 20).half()
    wide, narrow = x.float().requires_grad_(), x.npu().requires_grad_()
    torch.nn.functional.mish(wide).sum().backward()
    torch.nn.functional.mish(narrow).sum().backward()
    # The two tanh differ in the last bit of a float: it may move a rounding.
    assert (narrow.grad.cpu() != wide.grad.half()).sum() <= 2
    y, p = torch.rand(1000).half(), (torch.rand(1000) * 10).half()
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    got = loss(x.npu(), y.npu(), reduction="none", pos_weight=p.npu())
    expected = loss(x.float(), y.float(), reduction="none", pos_weight=p.float()).half()
    assert (got.cpu() != expected).sum() <= 2


@pytest.mark.parametrize("convolution", ["conv2d", "conv_transpose2d"])
def test_a_convolution_rounds_once_after_its_bias(convolution):
    function = getattr(torch.nn.functional, convolution)
    x, w, b = torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3), torch.randn(4) * 50
    x, w, b = x.half(), w.half(), b.half()
    expected = function(x.double(), w.double(), b.double()).half()
    assert (function(x.npu(), w.npu(), b.npu()).cpu() != expected).sum() <= 1


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_rounds_once(affine):
    x = (torch.rand(20, 6, 10, 10) * 200 - 100).half()
    scale = torch.randn(2, 6).half() if affine else (None, None)

    def normal(device, dtype):
        weights = [None if s is None else s.to(device, dtype) for s in scale]
        return torch.nn.functional.group_norm(x.to(device, dtype), 2, *weights).cpu()

    assert (normal("npu", torch.half) != normal("cpu", torch.double).half()).sum() <= 12  # of 12000


def test_group_norm_refuses_what_does_not_fit():
    x, three = torch.randn(2, 6, 4).npu(), torch.randn(3).npu()
    with pytest.raises(RuntimeError, match="Expected weight"):
        torch.native_group_norm(x, three, None, 2, 6, 4, 2, 1e-5)
    with pytest.raises(RuntimeError, match="divisible by num_groups"):
        torch.native_group_norm(x, None, None, 2, 6, 4, 4, 1e-5)
    with pytest.raises(RuntimeError, match="expected 2 x 6 x 5 elements"):
        torch.native_group_norm(x, None, None, 2, 6, 5, 2, 1e-5)
    empty = torch.native_group_norm(x[:0], None, None, 0, 6, 4, 2, 1e-5)
    assert empty[0].shape == (0, 6, 4) and empty[1].shape == (0, 2)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_divisor_beside_16_bit_floats_is_not_rounded(mode):
    x = torch.tensor([72.1875, 144.375, 100.0]).half()  # 72.2 as a half is 72.1875
    assert torch.div(x.npu(), 72.2, rounding_mode=mode).tolist() == [0, 1, 1]
