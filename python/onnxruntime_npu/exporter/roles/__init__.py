"""The roles of a decoder's parts: their replacements, and the proofs of these.

A role (``role``) recognises one part of a transformers model by its structure (match), creates
candidate replacements (build), proves that one of them computes the same (prove), and records the
result (report). One file each, with the module that is exported for it:

- ``norm``, ``linear``, ``mlp``, ``experts``, ``rotary``, ``attention``: the parts of a layer;
- ``layer``, ``masking``: how a layer combines its parts, and which tokens it attends to;
- ``decoder``: embedding, final norm and logits.

``probes`` holds the inputs of the proofs. Linear weights are stored as [in, out], the operand order
of ONNX MatMul. Symbols in shapes: B
batch, S new tokens, T past and new tokens, H hidden size, Nq and Nkv heads, D head size, V
vocabulary.
"""
