"""An OpenAI-compatible service for exported directories: ``onnxruntime-npu serve``.

- ``server``: the process that listens, and its signals.
- ``app``, ``routes``, ``middleware``, ``schemas``, ``answers``, ``api_errors``: the interface.
- ``served_model``, ``messages``, ``chat``, ``sampling_options``: from a request to tokens and
  options.
- ``response_format``, ``tools``, ``tool_formats``, ``tool_calls``: answers of a form, and calls.
- ``choices``, ``disconnection``: from new tokens to text, while it is wanted.
- ``engine``, ``engine_connection``: the client of the engine's process, started again when it
  fails.
- ``engine_process``, ``batch``, ``engine_messages``: that process; one thread owns the engine.
- ``metrics``, ``settings``.
- ``ray_app``: several of these services behind one address, by Ray Serve.
"""
