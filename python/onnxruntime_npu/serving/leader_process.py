"""The process that leads the ranks: ``python -m …leader_process FD DIR PROVIDER DEVICE``.

It is no rank itself. It has the requests, chooses tokens and gives every rank the inputs of each
step; onnxruntime-genai's engine, which keeps those to itself, cannot lead ranks. When a rank ends,
so does this process, with all others: the server starts it again.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

from ..generation.ranks import count_of_parts
from .channel import Channel
from .child_process import Inbox, serve_connection
from .engine_messages import RanksStarted, Ready
from .lane import take_messages, warm_up
from .logits_lane import LogitsLane
from .logits_model import LogitsModel, providers_of
from .rank_processes import RankProcesses


def _run(channel: Channel, directory: Path, provider: str, device: int) -> None:
    first = directory / "rank_0"
    settings = json.loads((first / "genai_config.json").read_text(encoding="utf-8"))
    inbox = Inbox(channel)
    count = count_of_parts(directory)
    with closing(RankProcesses(directory, count, provider, device)) as ranks:
        channel.send(RanksStarted(ranks.processes))
        providers = providers_of(settings, provider, device)
        model = LogitsModel(first, settings, providers, ranks.open)
        lane = LogitsLane.of(model)
        warm_up(lane)
        room = model.block_count * model.block_size
        channel.send(
            Ready(
                max_batch=model.most_rows,
                max_length=min(settings["model"]["context_length"], room),
                cache_blocks=model.block_count,
                vocabulary=model.vocabulary,
            )
        )
        ranks.watch(lambda: inbox.put(None))
        while take_messages(inbox, (lane,), lambda _: lane):
            channel.send(lane.step())
        ranks.check()


if __name__ == "__main__":
    sys.exit(serve_connection(sys.argv[1:], _run))
