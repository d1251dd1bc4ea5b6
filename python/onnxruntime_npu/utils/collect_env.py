"""``torch_npu.utils.collect_env``: what a bug report says of the installation."""

from __future__ import annotations


def get_cann_version() -> str:
    """Return ``"not known"``: the host NPU needs no CANN, so there is none to ask."""
    return "not known"


def get_torch_npu_version() -> str:
    """Return the version of this package, which stands in for torch_npu."""
    from .. import __version__

    return __version__
