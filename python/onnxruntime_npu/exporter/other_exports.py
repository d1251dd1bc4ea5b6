"""Which export takes a kind of model, for the error of one that does not."""

from __future__ import annotations

# Functions by their commands' names, and the classes of transformers by which they load; where
# several take a model, the most specific first.
_EXPORTS = {
    "export-image-text-to-text": ("export_image_text_to_text", ["AutoModelForImageTextToText"]),
    "export-seq2seq": ("export_seq2seq", ["AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"]),
    "export": ("export_causal_lm", ["AutoModelForCausalLM"]),
    "export-encoder": ("export_encoder", ["AutoModel"]),
}


def other_export(model_type: str | None, loader: str) -> str | None:
    """Return what exports models of a ``model_type`` that ``loader`` does not load, if anything."""
    import transformers

    for command, (function, loaders) in _EXPORTS.items():
        for each in loaders:
            known = getattr(transformers, each)._model_mapping._model_mapping  # names of classes
            if model_type in known and loader not in loaders:
                return f"{model_type} models are exported by {command} ({function} in Python)"
    return None
