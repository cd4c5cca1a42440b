"""A model's own generation_config, kept free of the defaults that transformers fills in.

After its first batch, `Seq2SeqTrainer` with `predict_with_generate` sets every empty field of `model.generation_config`
to transformers' default, such as `max_length = 20`. Such a limit would cut translations, and would be saved with the
model.
"""

import copy
import os
from typing import Any

from transformers import GenerationConfig

from .generation_vaswani import paper_generation_config


# The defaults of transformers 5.15 to 5.23, which have no public name there.
_DEFAULTS: dict[str, Any] = {
    "max_length": 20,
    "min_length": 0,
    "do_sample": False,
    "use_cache": True,
    "early_stopping": False,
    "num_beams": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "num_return_sequences": 1,
    "output_scores": False,
    "return_dict_in_generate": False,
    "remove_invalid_values": False,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "encoder_repetition_penalty": 1.0,
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10,
    "target_lookbehind": 10,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
}

# Fields that do not concern the search. Without a generation_config.json, transformers copies some from config.json.
_NOT_OF_SEARCH = {
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "transformers_version",
    "_from_model_config",
    "use_cache",
}


def is_filled(config: GenerationConfig) -> bool:
    """Whether a library has filled in every default; a user sets a few fields, never all."""
    return all(getattr(config, name, default) is not None for name, default in _DEFAULTS.items())


def empty_defaults(config: GenerationConfig, own: GenerationConfig | None) -> None:
    """Reset fields that a library has filled in to None.

    Args:
        config: A filled configuration; changed in place.
        own: The configuration before it was filled; its fields are kept. None if unknown.
    """
    for name, default in _DEFAULTS.items():
        if getattr(config, name, None) == default and getattr(own, name, None) is None:
            setattr(config, name, None)


class OwnGenerationConfig:
    """Keeps transformers' defaults out of a model's `generation_config`; must be the first base class."""

    generation_config: GenerationConfig

    # The configuration, and its last copy without the defaults.
    _seen: tuple[GenerationConfig, GenerationConfig] | None = None

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model; see `transformers.PreTrainedModel.from_pretrained`.

        If `generation_config.json` is missing or has no search options, the model gets `paper_generation_config`.
        """
        loaded = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]  # a mixin
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with `output_loading_info`
        model.restore_generation_config()
        if not set(model.generation_config.to_diff_dict()) - _NOT_OF_SEARCH:
            model.generation_config = paper_generation_config(model.config)
        return loaded

    def restore_generation_config(self) -> None:
        """Remove filled-in defaults from `generation_config`; keep the user's fields."""
        config = self.generation_config
        if is_filled(config):
            empty_defaults(config, self._seen[1] if self._seen is not None and self._seen[0] is config else None)
        else:
            self._seen = (config, copy.copy(config))

    def generate(
        self, inputs: Any = None, generation_config: GenerationConfig | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Translate; see `VaswaniGenerationMixin.generate`. A filled-in default does not limit the length."""
        self.restore_generation_config()
        given = generation_config
        if given is not None and is_filled(given) and given.max_length == _DEFAULTS["max_length"]:
            generation_config = copy.deepcopy(given)
            generation_config.max_length = None
        return super().generate(inputs, generation_config, *args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save the model with its own generation_config; see `transformers.PreTrainedModel.save_pretrained`."""
        self.restore_generation_config()
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
