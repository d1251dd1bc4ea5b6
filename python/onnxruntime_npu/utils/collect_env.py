"""``torch_npu.utils.collect_env``: the installation data of a bug report."""

from __future__ import annotations


def get_cann_version() -> str:
    """Return ``"not known"``: the host NPU does not need CANN."""
    return "not known"


def get_torch_npu_version() -> str:
    """Return the version of this package, which replaces torch_npu."""
    from .. import __version__

    return __version__
