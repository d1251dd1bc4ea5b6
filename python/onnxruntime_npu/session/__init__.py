"""The onnxruntime side: the provider's registration, its sessions, their nodes and values.

- ``provider_library``: the library's path and its own C functions.
- ``registration``: registers the provider with onnxruntime, on import of the package.
- ``session_hook``: session features that a plugin provider cannot implement.
- ``bound_values``: what runs that are replayed have bound.
- ``given_initializers``: weights that session options are given.
- ``changed_model``: models that are changed before onnxruntime reads them.
- ``option_entries``: entries of the options of sessions and runs.
- ``node_assignment``: the provider of each node of a session, and the reason.
- ``ortvalue``: values in NPU memory.

The package re-exports the public names: ``onnxruntime_npu.assignment``, ``ortvalue_from_numpy`` ...
"""
