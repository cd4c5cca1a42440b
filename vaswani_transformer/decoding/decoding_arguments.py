"""Options shared by all recipes that decode with a saved model."""

from dataclasses import MISSING, dataclass
from typing import Any, Literal, TypedDict, cast

from accelerate import PartialState
from transformers import PreTrainedModel

from ..launch.memory import keep_freed_memory
from ..model.saved_model import SavedModel, open_model
from ..options.arguments import COUNT, POSITIVE, SEED, Interval, option
from .int8 import require_int8, with_int8_layers


BEAMS = Interval(minimum=1, maximum=2**10)  # more exhaust the memory
DecodingPrecision = Literal["auto", "float32", "bf16", "fp16", "int8", "bfloat16", "float16"]


@dataclass
class DecodingArguments:
    """Options of every recipe that decodes with a saved model."""

    tokens_per_batch: int = option(
        4096, "Source tokens of a batch, padding included; its beams may generate 16 times as many.", COUNT
    )
    precision: DecodingPrecision = option(
        "auto",
        "Dtype of the model, also by PyTorch's name. 'auto' is that of the saved weights; for a file of 2,000 lines or "
        "more, translate.py measures whether bf16, or on a GPU fp16, is faster by 15 percent. 'int8', on a CPU, rounds "
        "the weights of linear layers to 8 bits.",
        alias="--dtype",
    )
    timeout_minutes: float = option(10.0, "Minutes that a process waits for the others before all end.", POSITIVE)
    trust_remote_code: bool = option(False, "Run code that comes with a model; only if you trust its author.")

    @property
    def dtype(self) -> str:
        """The precision by PyTorch's name, "auto" or "int8"."""
        return {"bf16": "bfloat16", "fp16": "float16"}.get(self.precision, self.precision)

    def open(self, name: str, named_by: str = "model", task: str = "translation") -> SavedModel:
        """Check a saved model by `open_model`; `named_by` is the option that named it."""
        saved = open_model(name, option=named_by, task=task, trust_remote_code=self.trust_remote_code)
        if self.precision == "int8":
            require_int8(saved.config, PartialState().device)
        return saved

    def load(self, saved: SavedModel) -> PreTrainedModel:
        """Load a model onto this process's device."""
        device = PartialState().device
        if device.type == "cpu":
            keep_freed_memory()
        if self.precision == "int8":
            return with_int8_layers(saved.load("float32"))
        return saved.load(self.dtype).to(device)


class GenerateKwargs(TypedDict, total=False):
    """Keywords for `generate`; what is missing is decided by the model's generation_config."""

    num_beams: int
    length_penalty: float
    max_new_tokens: int
    num_return_sequences: int
    do_sample: bool
    top_k: int
    temperature: float
    ensemble: list[PreTrainedModel]


@dataclass
class SearchArguments:
    """Options of beam search (6.1)."""

    num_beams: int | None = option(None, "Beams (6.1); by default the model's generation_config.", BEAMS)
    length_penalty: float | None = option(None, "Alpha of 6.1; by default the model's generation_config.")

    @property
    def generate_kwargs(self) -> GenerateKwargs:
        """Keywords for `generate`."""
        return self._given("num_beams", "length_penalty")

    def _given(self, *names: str) -> GenerateKwargs:
        return cast(GenerateKwargs, {name: getattr(self, name) for name in names if getattr(self, name) is not None})


@dataclass
class ShownSearchArguments(SearchArguments):
    """Options of the recipes that show the beam search of a translation model of this package."""

    model: str = option(MISSING, "Directory of a saved model of this package, or its name on the Hub.")
    target_language: str | None = option(None, "Language to translate into, of a model of both directions.")

    def open(self) -> SavedModel:
        """Check the model by `open_model`."""
        return open_model(self.model, model_type="vaswani")


@dataclass
class GenerationArguments(DecodingArguments, SearchArguments):
    """Options of `generate`: beam search (6.1) or sampling, and the number of hypotheses."""

    max_new_tokens: int | None = option(
        None, "Longest translation; by default the model's generation_config.", Interval(minimum=1, maximum=2**20)
    )
    num_return_sequences: int = option(1, "Translations of each line: the best of the beam, or samples.", BEAMS)
    do_sample: bool = option(False, "Draw each token from the model's distribution, instead of searching.")
    top_k: int | None = option(None, "Sample from the k most probable tokens only; by default from all.", COUNT)
    temperature: float | None = option(None, "Divides the logits before sampling; 1 by default.", POSITIVE)
    seed: int = option(0, "Seed of sampling.", SEED)

    def __post_init__(self) -> None:
        """Raise a ValueError if an option of searching is combined with sampling, or the other way round."""
        unused = ("num_beams", "length_penalty") if self.do_sample else ("top_k", "temperature")
        for name in unused:
            if getattr(self, name) is not None:
                condition = "without" if self.do_sample else "with"
                raise ValueError(f"{name}: has an effect only {condition} --do_sample; leave one of the two out")

    @property
    def generate_kwargs(self) -> GenerateKwargs:
        """Keywords for `generate`."""
        given = super().generate_kwargs | self._given("max_new_tokens", "num_return_sequences", "temperature")
        if self.do_sample:  # all tokens are 0 in transformers, where None means 50
            given |= {"do_sample": True, "num_beams": 1, "top_k": self.top_k or 0}
        return given

    @property
    def search_settings(self) -> dict[str, Any]:
        """All options here that change translations.

        Batches do so with sampling, which draws for all rows, and with int8, which rounds all rows together.
        """
        names = ["num_beams", "length_penalty", "max_new_tokens", "dtype", "num_return_sequences", "do_sample"]
        if self.do_sample:
            names += ["top_k", "temperature", "seed"]
        if self.do_sample or self.precision == "int8":
            names.append("tokens_per_batch")
        return {name: getattr(self, name) for name in names}
