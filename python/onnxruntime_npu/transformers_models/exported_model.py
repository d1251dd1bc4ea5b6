"""What transformers' pipelines expect of any model, for an exported directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import onnxruntime as ort
import torch
from transformers import AutoConfig
from transformers.pipelines.base import SUPPORTED_PEFT_TASKS

from ..errors import ArgumentError
from ..generation.exported import Exported

if TYPE_CHECKING:
    from typing_extensions import Self


class ExportedModel(ABC):
    """Base of models over exported directories.

    Inputs and outputs are tensors on the CPU; weights and caches are on the provider's device.
    """

    task: ClassVar[str | None] = None  # of the pipeline that takes the model
    runner: ClassVar[type[Exported]]
    main_input_name = "input_ids"
    base_model_prefix = ""
    input_modalities = ("text",)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # The list of further models by which a pipeline decides whether to print an error.
        if cls.task is not None:
            SUPPORTED_PEFT_TASKS[cls.task].append(cls.__name__)

    def __init__(self, exported: Exported) -> None:
        """Wrap an opened directory; ``from_pretrained`` opens one."""
        self.exported = exported
        self.config = AutoConfig.from_pretrained(
            exported.directory, local_files_only=True, trust_remote_code=False
        )
        self.name_or_path = str(exported.directory)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path,
        *,
        providers: Sequence[Any] | None = None,
        session_options: ort.SessionOptions | None = None,
    ) -> Self:
        """Open what an export wrote.

        Args:
            directory: output of the export; models are not downloaded.
            providers: as for InferenceSession; default: the NPU.
            session_options: as for InferenceSession; default: log errors only.

        Raises ArgumentError for a directory without such a model or an unavailable provider.
        """
        return cls(cls.runner(directory, providers=providers, session_options=session_options))

    @property
    def device(self) -> torch.device:
        """Where inputs and outputs are: the CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """That of the exported weights."""
        name = self.exported.report.get("dtype", "float32")
        return getattr(torch, name)

    def to(self, *arguments: Any, **options: Any) -> Self:
        """Return the model itself; ArgumentError for what would move or convert it.

        Its place is chosen by ``providers``, its dtype by the export.
        """
        for value in (*arguments, *options.values()):
            if isinstance(value, torch.dtype) and value != self.dtype:
                raise ArgumentError(f"expected {self.dtype}, the exported dtype, got {value}")
            if isinstance(value, str | torch.device) and torch.device(value).type not in (
                "cpu",
                "npu",
            ):
                raise ArgumentError(
                    f"expected cpu or npu, got {value}: providers= chooses where the model runs"
                )
        return self

    def eval(self) -> Self:
        """Return the model itself, which has no other mode."""
        return self

    @classmethod
    def can_generate(cls) -> bool:
        """Whether the model has ``generate``."""
        return hasattr(cls, "generate")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Run ``forward``."""
        return self.forward(*arguments, **options)

    @abstractmethod
    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Run the model."""
