"""Compatibility with torch_npu beyond operators and the device API.

- ``torch_npu_alias``: makes ``import torch_npu`` import this package.
- ``script_runner``: runs scripts unmodified, for ``onnxruntime-npu run``.
- ``formats``, ``swapped_memory``: functions on tensors and their storage.
- ``checksum``: a check of matmuls for faults of the hardware.

The package re-exports the public names: ``onnxruntime_npu.install_as_torch_npu``,
``npu_format_cast`` ...
"""
