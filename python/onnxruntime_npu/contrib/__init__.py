"""``torch_npu.contrib``: modules that scripts import in addition to operators and device."""
