"""What training attention and its backward pass share.

To read in this order:

- ``reference``: both passes in plain torch.
- ``problem``: what they begin with: the arguments, checked; the sequences, their masks and bias.
- ``body``: the portable form in ONNX of the same.
- ``samples``, ``refusals``: calls that are tested, and calls that must fail.
"""
