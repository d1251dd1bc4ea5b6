"""The greatest values along an axis, and their places as int32.

Source: torch_npu.npu_max, npu_max_backward.
"""

from ._extremes import check_reduction, extreme

op = extreme("npu_max", "catalogue", expect=[[5, 7], [1, 0]])


@op.function
def npu_max(self, dim, keepdim=False):
    """Return the greatest values along dim, NaN before all, and their first places as int32."""
    check_reduction("npu_max", self, dim)
    values, indices = self.max(dim, keepdim)
    return values, indices.int()
