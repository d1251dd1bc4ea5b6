"""What the inference attention operators share; an operator's own file says which of it is its own.

To read in this order:

- ``reference``: the call, checked and computed from top to bottom in plain torch. An operator hands
  its arguments to ``attend``, under the names that npu_fused_infer_attention_score gives them.
- ``combinations``, ``operands``, ``quantisation``, ``sequences``: the steps of the reference, in
  the order of its call: what goes together, shapes, integers, lengths and masks.
- ``body``: the portable form in ONNX.
- ``samples``, ``refusals``: calls that are tested, and calls that must fail.

Where torch_npu leaves a point open, this holds:

- A query row that may see no key gives output 0 and log-sum-exp -inf; so do rows beyond the query
  lengths, rows of padding, and all rows of an entry whose padding leaves no room for its rows.
- A masked key adds nothing to its row, even if it or its value is NaN or infinite. (The portable
  form in ONNX holds to this for scores, and for values beyond a sequence's length.)
- Head sizes are any from 1 to 512, and the dtype may be float32 too.
- A compressed mask of sparse modes 2, 3 and 4 is checked by its shape only.
- Sparse mode 0 applies pre_tokens and next_tokens together with atten_mask, from the top left.
- T layouts need both lists of lengths. A full atten_mask and pse_shift have at least the rows and
  keys of the longest sequence with queries; each reads its own, or the only one, from the upper
  left corner.
- Entries of block_table behind a sequence's length are never looked at.
- Patterns count rows and keys from the first that is no padding, after the prefix has been put in
  front of the keys. A full atten_mask and pse_shift speak of places in the tensors: their last axis
  counts the prefix, then every row of key.
- Integers of a cache stand for (x + offset) * scale, rounded after each step to the scales' dtype:
  query's, or float32.
- What has no meaning together is refused: see combinations.py.
- Rope parts of a query int8 are floats: their products are added to those of the integers times
  dequant_scale1, and the result has their type.
- With query int8, weights are exp(score - maximum) quantised to int8; they are summed before that.
  The kernel quantises against the maximum of the keys so far, the reference against that of all.
"""
