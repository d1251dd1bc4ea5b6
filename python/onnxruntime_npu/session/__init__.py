"""onnxruntime's side: the provider's registration, its sessions, their nodes and their values.

- ``provider_library``: where the library lies and what its own C functions say.
- ``registration``: makes the provider known to onnxruntime, on import of the package.
- ``session_hook``: what sessions of the provider need beyond a plugin provider.
- ``node_assignment``: which node of a session runs where, and why.
- ``ortvalue``: values in NPU memory.

The package offers what is public of it: ``onnxruntime_npu.assignment``, ``ortvalue_from_numpy`` ...
"""
