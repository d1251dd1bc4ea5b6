"""The least values along an axis, and their places as int32.

Source: torch_npu.npu_min, npu_min_backward.
"""

from ._extremes import check_reduction, extreme

op = extreme("npu_min", "by_hand", expect=[[1, 0], [0, 2]])


@op.function
def npu_min(self, dim, keepdim=False):
    """Return the least values along dim, NaN before all, and their first places as int32."""
    check_reduction("npu_min", self, dim)
    values, indices = self.min(dim, keepdim)
    return values, indices.int()
