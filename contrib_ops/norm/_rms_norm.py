"""The gradients of RMS normalisation, for the operator and for its backward operator."""


def gradients(dy, x, gamma, rstd):
    """Return dx, rounded once, and dgamma in float32, both computed in at least float32.

    dx = rstd (g - n mean(g n)), dgamma = sum(dy n) over rows; n = x rstd, g = dy gamma.
    """
    axes = list(range(x.dim() - gamma.dim(), x.dim()))
    rows = list(range(x.dim() - gamma.dim()))
    dy, normalized = dy.to(rstd.dtype), x.to(rstd.dtype) * rstd
    g = dy * gamma.to(rstd.dtype)
    dx = rstd * (g - normalized * (g * normalized).mean(axes, keepdim=True))
    dgamma = dy * normalized
    return dx.to(x.dtype), dgamma.sum(rows) if rows else dgamma
