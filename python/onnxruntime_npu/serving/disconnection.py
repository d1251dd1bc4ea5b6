"""Work for a client that may go away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client has closed the connection."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of ``work``, or cancel it and raise ClientGone.

    The body of the request has been read: all that ``receive`` may still give is the disconnection.
    """
    answer, gone = asyncio.create_task(work), asyncio.create_task(_disconnection(receive))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not answer.done():
            answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)
    if answer.cancelled():
        raise ClientGone
    return answer.result()


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
