"""`pipeline("translation")`, which transformers 5 no longer has: text in, translated text out."""

import copy
import re
from types import GeneratorType
from typing import Any

from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, Pipeline
from transformers import pipelines as _pipelines


class VaswaniTranslationPipeline(Pipeline):
    """Translates strings, lists, datasets and generators.

    A string or a list gives a list of `{"translation_text": ...}`, one for each input (a list of lists with
    `num_return_sequences` above 1); a dataset or generator gives an iterator over such lists, read as it goes. Empty
    input gives empty output. Keywords of `generate` are passed on; by default it decodes as the paper does.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _pipeline_calls_generate = True

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Translate `inputs`.

        Args:
            inputs: A string, a sequence of strings, a `torch.utils.data.Dataset` of strings (such as transformers'
                `KeyDataset`) or a generator of strings.
            batch_size: Sentences translated at once.
            truncation: Cut inputs at the tokenizer's `model_max_length`.

        Raises:
            TypeError: Something else than a string is to be translated.
        """
        if isinstance(inputs, str):
            return super().__call__(inputs, **kwargs)
        if isinstance(inputs, (GeneratorType, Dataset)):
            return super().__call__(inputs, **kwargs)
        sentences = list(inputs)
        results = super().__call__(sentences, **kwargs) if sentences else []
        if all(len(hypotheses) == 1 for hypotheses in results):
            return [hypotheses[0] for hypotheses in results]
        return results

    def _sanitize_parameters(
        self, truncation: bool | None = None, src_lang: str | None = None, tgt_lang: str | None = None, **generate: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        # The languages come from task names such as translation_en_to_de; a model knows one pair only.
        return {} if truncation is None else {"truncation": truncation}, generate, {}

    def preprocess(self, text: str, truncation: bool = False) -> dict[str, Any]:
        if not isinstance(text, str):
            raise TypeError(f"the translation pipeline takes strings, not {type(text).__name__}: {text!r}")
        table = self.model.config.max_position_embeddings
        if getattr(self.model.config, "position_encoding", None) != "learned":
            table = None  # sinusoids have no end
        encoded = self.tokenizer(
            text, return_tensors="pt", truncation=truncation or table is not None, max_length=table
        )
        return {**encoded, "blank": not text.strip()}

    def _forward(self, model_inputs: dict[str, Any], **generate_kwargs: Any) -> dict[str, Any]:
        blank = model_inputs.pop("blank")
        if hasattr(self, "_prepare_generate_kwargs"):  # from transformers 5.20
            generate_kwargs = self._prepare_generate_kwargs(generate_kwargs)
        elif "generation_config" not in generate_kwargs:
            config = copy.deepcopy(self.generation_config)
            # The pipeline has filled in transformers' default, which is no limit of this model's.
            if self.model.generation_config.max_length is None and config.max_length == 20:
                config.max_length = None
            generate_kwargs["generation_config"] = config
        output_ids = self.model.generate(**model_inputs, **generate_kwargs)  # [batch * returned, target]
        batch = model_inputs["input_ids"].shape[0]
        return {"output_ids": output_ids.unflatten(0, (batch, -1)), "blank": blank}

    def postprocess(self, model_outputs: dict[str, Any]) -> list[dict[str, str]]:
        hypotheses = model_outputs["output_ids"][0]  # [returned, target]
        if model_outputs["blank"]:
            return [{"translation_text": ""} for _ in hypotheses]
        return [
            {"translation_text": text} for text in self.tokenizer.batch_decode(hypotheses, skip_special_tokens=True)
        ]


_LANGUAGE_PAIR = re.compile(r"translation_(\w+)_to_(\w+)")


def install_translation_task() -> None:
    """Make `pipeline("translation")` and `pipeline("translation_en_to_de")` known to transformers.

    Where transformers has a translation task of its own, that stays.
    """
    registry = _pipelines.PIPELINE_REGISTRY
    # From 5.19 a list of removed tasks is asked before the registry is.
    getattr(_pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    if "translation" in registry.supported_tasks:
        return
    registry.register_pipeline(
        "translation", pipeline_class=VaswaniTranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
    )
    # Else `pipe.save_pretrained` would declare the pipeline as code of the saved directory.
    del VaswaniTranslationPipeline._registered_impl
    original = registry.check_task

    def check_task(task: str) -> tuple[str, dict, Any]:
        match = _LANGUAGE_PAIR.fullmatch(task)
        if match and task not in registry.supported_tasks:
            return "translation", registry.supported_tasks["translation"], match.groups()
        return original(task)

    registry.check_task = check_task
