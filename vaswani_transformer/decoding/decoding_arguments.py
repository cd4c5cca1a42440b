"""Options shared by all recipes that decode with a saved model."""

from dataclasses import MISSING, dataclass
from typing import Any, Literal

from accelerate import PartialState
from transformers import PreTrainedModel

from ..options.arguments import COUNT, POSITIVE, SEED, Interval, option, refuse_unused
from ..system.processor import keep_freed_memory, warn_of_slow_bfloat16
from .saved_model import SavedModel, open_model


BEAMS = Interval(minimum=1, maximum=2**10)  # more exhaust the memory
ALPHA = Interval(minimum=-100, maximum=100)
DecodingPrecision = Literal["auto", "float32", "bf16", "fp16"]

# Options with the names of keywords of `generate`.
_GENERATE = ("num_beams", "length_penalty", "max_new_tokens", "num_return_sequences", "temperature", "force_words")
_DTYPES = {"auto": "auto", "float32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # PyTorch's names


@dataclass
class DecodingArguments:
    """Options of every recipe that decodes with a saved model."""

    option_group = "decoding"

    tokens_per_batch: int = option(
        4096,
        "Source tokens of a batch, padding included; its beams may generate 16 times as many.",
        COUNT,
        decides="samples",  # each step samples for all rows of a batch
    )
    precision: DecodingPrecision = option(
        "auto",
        "Dtype of the model. 'auto' is that of the saved weights; for a file of 2,000 lines or more, translate.py "
        "measures whether bf16, or on a GPU fp16, is faster by 15 percent.",
        decides="translations",
    )
    timeout_minutes: float = option(10.0, "Minutes that a process waits for the others before all end.", POSITIVE)
    trust_remote_code: bool = option(False, "Run code that comes with a model; only if you trust its author.")

    def open(self, name: str, named_by: str = "model", task: str = "translation") -> SavedModel:
        """Check a saved model by `open_model`; `named_by` is the option with its name."""
        return open_model(name, option=named_by, task=task, trust_remote_code=self.trust_remote_code)

    def load(self, saved: SavedModel) -> PreTrainedModel:
        """Load a model onto this process's device, in the `precision` of the options."""
        device = PartialState().device
        model = saved.load(_DTYPES[self.precision]).to(device)
        if device.type == "cpu":
            keep_freed_memory()
            if str(model.dtype) == "torch.bfloat16":
                warn_of_slow_bfloat16()
        return model


@dataclass
class SearchArguments:
    """Options of beam search (6.1)."""

    option_group = "search"

    num_beams: int | None = option(
        None, "Beams (6.1); by default the model's generation_config.", BEAMS, decides="translations"
    )
    length_penalty: float | None = option(
        None, "Alpha of 6.1; by default the model's generation_config.", ALPHA, decides="translations"
    )

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Keywords for `generate`; the model's generation_config decides missing ones."""
        return {name: value for name, value in vars(self).items() if name in _GENERATE and value is not None}


@dataclass
class ShownSearchArguments(SearchArguments):
    """Options of the recipes that show the beam search of a translation model of this package."""

    model: str = option(MISSING, "Directory of a saved model of this package, or its name on the Hub.")
    target_language: str | None = option(None, "Language to translate into, of a model of both directions.")


@dataclass
class GenerationArguments(DecodingArguments, SearchArguments):
    """Options of `generate`: beam search (6.1) or sampling, and the number of hypotheses."""

    option_group = "search"

    max_new_tokens: int | None = option(
        None,
        "Longest translation; by default the model's generation_config.",
        Interval(minimum=1, maximum=2**20),
        decides="translations",
    )
    force_words: list[str] | None = option(
        None, "Words and phrases that each translation contains, as whole words.", decides="translations"
    )
    num_return_sequences: int = option(
        1, "Translations of each line: the best of the beam, or samples.", BEAMS, decides="translations"
    )
    do_sample: bool = option(
        False, "Draw each token from the model's distribution, instead of searching.", decides="translations"
    )
    top_k: int | None = option(
        None, "Sample from the k most probable tokens only; by default from all.", COUNT, decides="samples"
    )
    temperature: float | None = option(
        None, "Divides the logits before sampling; 1 by default.", POSITIVE, decides="samples"
    )
    seed: int = option(0, "Seed of sampling.", SEED, decides="samples")

    def __post_init__(self) -> None:
        if self.do_sample:
            advice = "sampling does not search; leave out this option or --do_sample"
            refuse_unused(self, dict.fromkeys(("num_beams", "length_penalty", "force_words"), advice))
        else:
            refuse_unused(self, dict.fromkeys(("top_k", "temperature"), "it is for sampling; give --do_sample, too"))

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Keywords for `generate`."""
        kwargs = super().generate_kwargs
        if self.do_sample:  # 0 means all tokens in transformers, None means 50
            kwargs |= {"do_sample": True, "num_beams": 1, "top_k": self.top_k or 0}
        return kwargs
