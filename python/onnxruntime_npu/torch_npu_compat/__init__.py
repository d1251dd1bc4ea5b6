"""What scripts of torch_npu find here beside operators and the device API.

- ``torch_npu_alias``: ``import torch_npu`` gives this package.
- ``script_runner``: scripts run unmodified, as ``onnxruntime-npu run`` does it.
- ``formats``, ``swapped_memory``: functions on tensors and their storage.

The package offers what is public of it: ``onnxruntime_npu.install_as_torch_npu``,
``npu_format_cast`` ...
"""
