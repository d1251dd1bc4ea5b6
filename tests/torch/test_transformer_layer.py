"""torch's fused inference of TransformerEncoder and MultiheadAttention."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("mask", [None, "padding", "source", "both"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=str)
def test_encoder_inference_matches_cpu(options, mask):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    masks = {
        "src_key_padding_mask": padding if mask in ("padding", "both") else None,
        "mask": torch.ones(5, 5).triu(1).bool() if mask in ("source", "both") else None,
    }
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = model(x, **masks)
        got = model.npu()(x.npu(), **{k: m if m is None else m.npu() for k, m in masks.items()})
    real = ~padding if mask in ("padding", "both") else slice(None)  # the CPU omits the rest
    torch.testing.assert_close(got.cpu()[real], expected[real] if mask else expected)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_inference_matches_cpu(need_weights, average):
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    other, x = torch.randn(2, 7, 8), torch.randn(2, 5, 8)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    on_npu = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().npu()
    on_npu.load_state_dict(model.state_dict())
    for query, mask in ((x, None), (x, padding), (other, None), (other, padding)):

        def attend(model, device, query=query, mask=mask):
            key = query if query is x else x
            query_there = query.to(device)
            key_there = query_there if key is query else key.to(device)
            return model(
                query_there, key_there, key_there, need_weights=need_weights,
                average_attn_weights=average,
                key_padding_mask=None if mask is None else mask.to(device),
            )  # fmt: skip

        with torch.no_grad():
            got, expected = attend(on_npu, "npu"), attend(model, "cpu")
        torch.testing.assert_close(got[0].cpu(), expected[0])
        assert (got[1] is None) == (expected[1] is None) == (not need_weights)
        if need_weights:
            torch.testing.assert_close(got[1].cpu(), expected[1])
