"""torch's side, without importing torch before it is asked for.

- ``torch_bridge``: what the extension ``_torch`` answers, for modules that need the device.
- ``torch_hook``: gives torch the operators and the device as soon as torch is there.
- ``torch_npu_alias``, ``script_runner``: scripts of torch_npu run unmodified.
- ``formats``, ``swapped_memory``: functions of torch_npu on tensors and their storage.

The device itself is ``onnxruntime_npu.torch_device``. The package offers what is public of the
rest: ``onnxruntime_npu.install_as_torch_npu``, ``npu_format_cast`` ...
"""
