"""Shared code of operators that rotate rows."""


def rotation_tolerances(op):
    """Set the tolerance of x cos + rotate(x) sin, whose two terms may cancel."""
    reason = "2^{} relative, of a result that cancels terms of ~10"
    op.tolerance("float16", rtol=1e-3, atol=4e-3, reason=reason.format(-11))
    op.tolerance("bfloat16", rtol=8e-3, atol=4e-2, reason=reason.format(-8))
