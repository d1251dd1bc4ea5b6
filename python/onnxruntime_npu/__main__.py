"""``python -m onnxruntime_npu``: the command ``onnxruntime-npu``."""

import sys

from onnxruntime_npu_command import main

sys.exit(main())
