"""The roles of a decoder's parts: what each is replaced by, and how that is proven.

A role (``role``) says of one part of a transformers model what it has to be made of (match), which
modules may take its place (build), that one of them computes the same (prove), and what is noted
of it (report). One file each, with the module that is exported for it:

- ``norm``, ``linear``, ``mlp``, ``experts``, ``rotary``, ``attention``: what a layer is made of;
- ``layer``, ``masking``: how a layer adds its parts up, and which tokens it looks at;
- ``decoder``: embedding, final norm and logits.

``probes`` holds what the proofs feed to both sides. Linear weights are kept as [in, out], the
operand order of ONNX MatMul, so that the file holds them as they are used. Symbols in shapes: B
batch, S new tokens, T past and new tokens, H hidden size, Nq and Nkv heads, D head size, V
vocabulary.
"""
