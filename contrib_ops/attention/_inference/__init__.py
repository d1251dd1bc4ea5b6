"""Shared code of the inference attention operators; each operator's file lists its differences.

Modules, in reading order:

- ``reference``: the call, checked and computed in plain torch. An operator passes its arguments to
  ``attend``, under the names of npu_fused_infer_attention_score.
- ``combinations``, ``operands``, ``quantisation``, ``sequences``: the steps of the reference in
  calling order: allowed combinations, shapes, integers, lengths and masks.
- ``body``: the function body in ONNX.
- ``samples``, ``refusals``: calls that are tested, and calls that must fail.

Where torch_npu does not specify the behaviour:

- A query row without visible keys gives output 0 and log-sum-exp -inf; so do rows beyond the query
  lengths, rows of padding, and all rows of an entry whose padding leaves no space for its rows.
- A masked key contributes nothing to its row, even if it or its value is NaN or infinite. (The ONNX
  form ensures this for scores, and for values beyond a sequence's length.)
- Any head size from 1 to 512 and also float32 are allowed.
- Only the shape of a compressed mask of sparse modes 2, 3 and 4 is checked.
- Sparse mode 0 applies pre_tokens and next_tokens together with atten_mask, from the top left.
- T layouts need both lists of lengths. A full atten_mask and pse_shift have at least the rows and
  keys of the longest sequence with queries; each sequence reads its own plane, or the only one,
  from the upper left corner.
- Entries of block_table beyond a sequence's length are never read.
- Patterns count rows and keys from the first one that is not padding, with the prefix prepended to
  the keys. A full atten_mask and pse_shift use positions in the tensors: their last axis covers the
  prefix, then every row of key.
- Integers of a cache represent (x + offset) * scale, rounded after each step to the scales' dtype:
  query's, or float32.
- Combinations without a defined meaning are rejected: see combinations.py.
- Rope parts of an int8 query are floats: their scores are added to the integer scores times
  dequant_scale1, and the result has their type.
- With query int8, weights are exp(score - max) quantised to int8; they are summed before that. The
  kernel quantises relative to the max of the keys so far, the reference relative to that of all.
"""
