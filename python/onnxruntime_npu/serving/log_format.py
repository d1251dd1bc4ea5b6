"""The server's log: lines for people, or an object of JSON each for what collects them."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

_TEXT = "%(asctime)s %(levelname)s %(message)s"
_FIELDS = "fields"  # of a record: what its message says, by name


def begin_log(form: str) -> None:
    """Write the log to the standard error; ``form`` is ``text`` or ``json``."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def fields(**values: Any) -> dict[str, dict[str, Any]]:
    """Return the ``extra`` of a record whose message says these values."""
    return {_FIELDS: values}


class JsonLines(logging.Formatter):
    """A line of JSON for each record: ``time`` (UTC), ``level``, ``message`` and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03}Z",
            "level": record.levelname,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
