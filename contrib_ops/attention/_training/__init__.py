"""Shared code of training attention and its backward pass.

Modules, in reading order:

- ``reference``: both passes in plain torch.
- ``problem``: their common first part: checked arguments, sequences, masks and bias.
- ``body``: the same in ONNX.
- ``samples``, ``refusals``: calls that are tested, and calls that must fail.
"""
