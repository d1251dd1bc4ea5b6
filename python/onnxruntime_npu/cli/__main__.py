"""``python -m onnxruntime_npu.cli``."""

import sys

from . import main

sys.exit(main())
