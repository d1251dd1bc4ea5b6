"""``torch_npu.version``: the only place where the version of the package stands."""

from __future__ import annotations

__version__ = "0.1.0"
git_version = "Unknown"
