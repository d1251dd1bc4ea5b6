"""matmul_checksum: right products pass, faults are found and mended."""

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _device():
    from onnxruntime_npu import torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    torch_device.register()
    torch_device.reset_fallback_counts()
    yield
    assert not torch_device.fallback_counts()


def _operands(*shapes):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator).bfloat16().npu() for shape in shapes]


SHAPES = [
    ((8, 16), (16, 32)),
    ((3, 40, 64), (3, 64, 70)),
    ((2, 5, 9), (9, 4)),
    ((4, 0), (0, 4)),
    ((0, 4), (4, 4)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_a_right_product_passes_unchanged(left, right):
    import onnxruntime_npu

    a, b = _operands(left, right)
    c = torch.matmul(a, b)
    kept = c.cpu()
    flag = onnxruntime_npu.matmul_checksum(a, b, c)
    assert flag.dtype == torch.bool and flag.dim() == 0 and flag.device.type == "npu"
    assert not flag.item()
    assert torch.equal(c.cpu(), kept)


def test_identities_pass():
    import onnxruntime_npu

    eye = torch.eye(2, dtype=torch.bfloat16).npu()
    assert not onnxruntime_npu.matmul_checksum(eye, eye, eye.clone()).item()


@pytest.mark.parametrize(("left", "right"), SHAPES[:3])
def test_a_fault_is_found_and_mended(left, right):
    import onnxruntime_npu

    a, b = _operands(left, right)
    c = torch.matmul(a, b)
    want = c.cpu()
    c.view(-1)[5] += 1000
    assert onnxruntime_npu.matmul_checksum(a, b, c).item()
    assert torch.equal(c.cpu(), want)
    assert not onnxruntime_npu.matmul_checksum(a, b, c).item()


def test_what_rounding_explains_is_no_fault():
    import onnxruntime_npu

    a, b = _operands((8, 16), (16, 32))
    c = torch.matmul(a, b)
    c[0, 0] *= 1 + 2**-7  # the next bfloat16
    kept = c.cpu()
    assert not onnxruntime_npu.matmul_checksum(a, b, c).item()
    assert torch.equal(c.cpu(), kept)


def test_other_tensors_are_refused():
    import onnxruntime_npu

    a, b = _operands((8, 16), (16, 32))
    c = torch.matmul(a, b)
    with pytest.raises(TypeError, match=r"\[matmul_checksum\] expected b on an npu, got .* cpu"):
        onnxruntime_npu.matmul_checksum(a, b.cpu(), c)
    with pytest.raises(TypeError, match=r"\[matmul_checksum\] expected c on an npu, got a list"):
        onnxruntime_npu.matmul_checksum(a, b, [])
    with pytest.raises(
        TypeError, match=r"\[matmul_checksum\] expected a of bfloat16, got torch.float16"
    ):
        onnxruntime_npu.matmul_checksum(a.half(), b, c)
    for wrong in ((a, b, c[1:]), (a[0], b, c), (a, b[1:], c), (a, b.expand(2, 16, 32), c)):
        with pytest.raises(RuntimeError, match=r"\[matmul_checksum\] expected a \[\.\., M, K\]"):
            onnxruntime_npu.matmul_checksum(*wrong)
