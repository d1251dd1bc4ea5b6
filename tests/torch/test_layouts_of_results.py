"""Strides of results: elementwise operators keep the layout of their inputs."""

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("no_fallback")

FUNCTIONS = {
    "relu": torch.relu,
    "abs": torch.abs,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isposinf": torch.isposinf,
    "logical_not": torch.logical_not,
    "logical_and": lambda t: torch.logical_and(t, t > 0),
    "where": lambda t: torch.where(t > 0, t, -t),
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "mish": F.mish,
    "logit": lambda t: torch.logit(t, eps=0.1),
    "angle": torch.angle,
    "complex": lambda t: torch.complex(t, t),
    "polar": lambda t: torch.polar(t.abs(), t),
    "flip": lambda t: t.flip(0, 2),
    "i0": torch.special.i0,
    "mse_loss": lambda t: F.mse_loss(t, t + 1, reduction="none"),
    "huber_loss": lambda t: F.huber_loss(t, t + 1, reduction="none"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_results_keep_strides(name):
    images = torch.randn(2, 3, 4, 5)
    for x in (
        images.to(memory_format=torch.channels_last),
        images.transpose(0, 3),
        images[:, :, ::2],
    ):
        given = torch.empty_strided(x.shape, x.stride(), device="npu").copy_(x)
        got, expected = FUNCTIONS[name](given), FUNCTIONS[name](x)
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got.cpu(), expected)


def test_in_place_operators_are_not_resized():
    narrow, wide = torch.ones(3, 1).npu(), torch.ones(3, 4).npu()
    for function in (narrow.logical_and_, narrow.logical_or_, narrow.logical_xor_):
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            function(wide)
    assert narrow.shape == (3, 1)
