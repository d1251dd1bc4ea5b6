"""Random calls of inference attention for tests of its properties."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

COMPRESSED = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
# One rounding of the weights and one of the result, to values of about 1.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
dtypes = st.sampled_from(list(TOLERANCES))


def random_floats(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).clamp(-4, 4).to(dtype)


def check_near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(
        got.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


@st.composite
def head_counts(draw) -> tuple[int, int, int]:
    """Draw the numbers of query heads and of key heads, and a head size."""
    kv_heads = draw(st.integers(1, 3))
    return kv_heads * draw(st.integers(1, 5)), kv_heads, draw(st.integers(1, 70))


def operands(heads, batch: int, rows: int, keys: int, dtype: torch.dtype):
    """Return query, key and value as BNSD, and the attributes."""
    n, kv, size = heads
    q = random_floats(1, batch, n, rows, size, dtype=dtype)
    k, v = (random_floats(s, batch, kv, keys, size, dtype=dtype) for s in (2, 3))
    attributes = {"num_heads": n, "num_key_value_heads": kv, "scale": size**-0.5,
                  "input_layout": "BNSD", "softmax_lse_flag": True}  # fmt: skip
    return q, k, v, attributes


def paged(rows: torch.Tensor, table: torch.Tensor, blocks: int, block_size: int, flat: bool):
    """Return [B, N, S, D] in blocks as the table says; what the table does not name is NaN."""
    _, heads, _, size = rows.shape
    cache = torch.full((blocks, heads, block_size, size), float("nan")).to(rows.dtype)
    parts = rows.unflatten(2, (table.shape[1], block_size)).transpose(1, 2)
    cache[table.long().flatten()] = parts.flatten(0, 1)
    return cache.transpose(1, 2).flatten(2).contiguous() if flat else cache
