"""Storage formats of npu tensors: labels that scripts set and read back."""

import pytest

pytest.importorskip("torch")


@pytest.fixture
def formats():
    from onnxruntime_npu import npu, torch_device
    from onnxruntime_npu.torch_npu_compat import formats

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    torch_device.register()
    npu.config.allow_internal_format = True
    yield formats
    npu.config.allow_internal_format = False


def test_format_is_a_label_of_the_storage(formats):
    import torch

    x = torch.rand(4, 6).npu()
    assert formats.get_npu_format(x) is formats.Format.ND
    tiled = formats.npu_format_cast(x, 29)
    assert formats.get_npu_format(tiled) is formats.Format.FRACTAL_NZ
    assert formats.get_npu_format(tiled[1:]) is formats.Format.FRACTAL_NZ
    assert formats.get_npu_format(x) is formats.Format.ND
    assert torch.equal(tiled.cpu(), x.cpu())
    assert formats.npu_format_cast(tiled, tiled) is tiled
    assert formats.npu_format_cast(x, 0).data_ptr() == x.data_ptr()  # plain to plain
    assert formats.get_npu_format(torch.empty(1, 2, 3, 4, device="npu")) is formats.Format.NCHW
    assert formats.get_npu_format(formats.npu_format_cast(torch.ones(3).npu(), 29)) == 2
    assert formats.get_storage_size(x[1:]) == 24
    assert formats.get_npu_format(formats.empty_with_format((2, 2), acl_format=29)) == 29
    with pytest.raises(RuntimeError, match=r"\[empty_with_format\] expected no pin_memory"):
        formats.empty_with_format((2, 2), pin_memory=True)


def test_nodes_have_every_format(formats):
    import torch

    x = torch.rand(4, 6)
    for number in formats.Format:
        for device in ("cpu", "npu"):
            cast = torch.ops.npu._npu_format_cast(x.to(device), int(number))
            assert torch.equal(cast.cpu(), x)


def test_cast_to_private_format_has_a_gradient(formats):
    import torch

    x = torch.rand(4, 6, device="npu", requires_grad=True)
    formats.npu_format_cast(x, 29).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(4, 6))


def test_private_formats_are_kept_only_while_allowed(formats):
    import torch
    from onnxruntime_npu import npu

    npu.config.allow_internal_format = False
    with pytest.warns(UserWarning, match="allow_internal_format is False"):
        cast = formats.npu_format_cast(torch.rand(4, 6).npu(), 29)
    assert formats.get_npu_format(cast) is formats.Format.ND


def test_unknown_formats_are_refused(formats):
    import torch

    with pytest.raises(RuntimeError, match="expected acl_format of"):
        formats.npu_format_cast(torch.ones(2).npu(), 77)
    with pytest.raises(RuntimeError, match="expected all tensors to be on npu, got one on cpu"):
        formats.get_npu_format(torch.ones(2))


def test_exported_cast_is_a_node(formats, tmp_path):
    import onnx
    import onnxruntime as ort
    import onnxruntime_npu
    import torch

    class Casts(torch.nn.Module):
        def forward(self, x):
            tiled = onnxruntime_npu.npu_format_cast(x, formats.Format.FRACTAL_NZ)
            return onnxruntime_npu.npu_format_cast(tiled * 2, x)

    x, path = torch.rand(4, 6), tmp_path / "casts.onnx"
    onnxruntime_npu.export(Casts(), (x,), path)
    model = onnx.load(path)
    assert [n.op_type for n in model.graph.node] == ["NPUFormatCast", "Mul", "NPUFormatCast"]
    for provider in ("NPUExecutionProvider", "CPUExecutionProvider"):
        session = ort.InferenceSession(path, providers=[provider])
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert torch.equal(torch.from_numpy(y), x * 2)
