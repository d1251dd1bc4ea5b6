"""One rank: generates greedily by a session of its part, and writes the tokens.

Arguments: a folder for the tokens, the prompts, the number of new tokens, and the exported model.
"""

import json
import os
import sys
from pathlib import Path

from onnxruntime_npu.generation import CausalLM

folder, prompts, new_tokens, place = sys.argv[1:]
model = CausalLM(place)
model.stop_tokens = frozenset()
made = model.generate_tokens(json.loads(prompts), max_new_tokens=int(new_tokens))
tokens = [list(map(int, row)) for row in made.tokens]
Path(folder, f"tokens_{os.environ['PMI_RANK']}.json").write_text(json.dumps(tokens))
