"""Options shared by all recipes that decode with a saved model."""

from dataclasses import dataclass
from typing import Literal

from accelerate import PartialState
from transformers import PreTrainedModel

from .arguments import COUNT, POSITIVE, Interval, option
from .saved_model import SavedModel, open_model
from .training import keep_freed_memory


BEAMS = Interval(minimum=1, maximum=2**10)  # more exhaust the memory


@dataclass
class DecodingArguments:
    """Options of every recipe that decodes with a saved model."""

    tokens_per_batch: int = option(
        4096, "Source tokens of a batch, padding included; its beams may generate 16 times as many.", COUNT
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "Dtype of the model; 'auto' is the dtype of the saved weights."
    )
    timeout_minutes: float = option(
        10.0, "Minutes without a heartbeat from one process after which all processes end.", POSITIVE
    )
    trust_remote_code: bool = option(False, "Run code that comes with a model; only if you trust its author.")

    def open(self, name: str, named_by: str = "model") -> SavedModel:
        """Check a saved model by `open_model`; `named_by` is the option that named it."""
        return open_model(name, option=named_by, trust_remote_code=self.trust_remote_code)

    def load(self, saved: SavedModel) -> PreTrainedModel:
        """Load a model onto this process's device."""
        device = PartialState().device
        if device.type == "cpu":
            keep_freed_memory()
        return saved.load(self.dtype).to(device)
