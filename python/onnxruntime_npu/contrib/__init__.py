"""``torch_npu.contrib``: what scripts import beside the operators and the device."""
