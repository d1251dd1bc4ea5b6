"""Grammars in llguidance's dialect of Lark."""

from __future__ import annotations

import re

from .engine_messages import Guidance

# Otherwise, where only one text can follow, the next token has to be the first one of that text, as
# the tokenizer divides it. That of onnxruntime-genai takes what begins within a character, such as
# the second byte of "é" where "à" was possible, for another text.
_NOTHING_FORCED = '%llguidance {"no_forcing": true}'
# What llguidance says of the grammar in which a client's schema or expression stands.
_AROUND = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?|\n +\d+ \| .*", re.DOTALL)
# What would end the literal of an expression, a slash or a line break, whether escaped or not.
_ENDS = re.compile(r"\\?[/\n]|\\.")


def lark_of(guidance: Guidance) -> str:
    """Return what an answer follows as a grammar for either lane, which forces no tokens."""
    text = guidance.text
    if guidance.kind == "json_schema":
        text = f"start: %json {text}"
    elif guidance.kind == "regex":
        text = f"start: {regex_literal(text)}"
    return f"{text}\n{_NOTHING_FORCED}"


def refusal_of(guidance: Guidance, said: str) -> str:
    """Return what llguidance said of ``lark_of`` as it is of what the client wrote."""
    # The grammar of tools is the server's; what is wrong in it is a client's schema.
    written = guidance.kind == "lark_grammar" and guidance.param != "tools"
    return said if written else _AROUND.sub("", said)


def regex_literal(regex: str) -> str:
    """Return a regular expression for the right side of a rule."""
    return f"/{_ENDS.sub(_escaped, regex)}/"


def _escaped(found: re.Match[str]) -> str:
    text = found[0]
    if text.endswith("/"):
        return "\\/"
    return "\\n" if text.endswith("\n") else text
