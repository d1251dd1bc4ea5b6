"""Saves tensors asynchronously."""

from __future__ import annotations

import pickle
import threading
from typing import Any


def save_async(
    obj: Any,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
    model: Any = None,
) -> None:
    """Write the file of ``torch.save`` on a thread, which must end before the process does.

    npu tensors are copied in the order of the current stream before this returns, so that they may
    change immediately; the thread waits for the copies and writes the file.

    Args:
        obj: to save.
        f: a path or a file object.
        pickle_module: see ``torch.save``.
        pickle_protocol: see ``torch.save``.
        model: accepted: a later backward need not wait, since the copies are ordered before it.

    Raises:
        RuntimeError: ``_use_new_zipfile_serialization`` is False.
    """
    import torch
    from torch.utils import _pytree as pytree

    if not _use_new_zipfile_serialization:
        raise RuntimeError("Error: torch_npu.save_async with _use_new_zipfile_serialization=False")
    snapshot = pytree.tree_map(
        lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, obj
    )
    copied = torch.Event("npu")
    copied.record()

    def write() -> None:
        copied.synchronize()
        on_host = pytree.tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, snapshot)
        torch.save(
            on_host,
            f,
            pickle_module,
            pickle_protocol,
            _disable_byteorder_record=_disable_byteorder_record,
        )

    threading.Thread(target=write, name="save_async").start()
