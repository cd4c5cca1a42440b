"""Keywords of `forward` and `generate`, by the names that they have in all supported releases of transformers."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import TransformersKwargs


# The name of keys and values in the keywords of `generate` and in outputs: "cache" since transformers 5.24.
CACHE = "cache" if "cache" in {field.name for field in fields(Seq2SeqLMOutput)} else "past_key_values"

# Keywords of transformers that `forward` accepts, and ignores or passes on. Positions are counted from the mask.
_KNOWN = (TransformersKwargs.__annotations__.keys() - {"position_ids"}) | {"return_dict", "logits_to_keep"}


def strict_keywords(forward: Callable) -> Callable:
    """Make `forward` accept `cache` by its older name `past_key_values`, and refuse unknown keywords.

    Otherwise `**kwargs` would swallow a keyword that transformers has renamed, and the result would be silently wrong.
    """
    known = {*inspect.signature(forward).parameters, *_KNOWN}

    @wraps(forward)
    def checked(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if CACHE == "cache" and kwargs.get("past_key_values") is not None:
            warnings.warn("`past_key_values` is deprecated; name it `cache`", FutureWarning, stacklevel=2)
        kwargs = named_cache(kwargs, "cache")
        unknown = [name for name, value in kwargs.items() if name not in known and value is not None]
        if unknown:
            raise TypeError(f"{type(self).__name__}.forward: does not know the keywords {unknown}; leave them out")
        return forward(self, *args, **kwargs)

    return checked


def named_cache(kwargs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Rename the cache among the keywords to `name`, whichever of its two names it has.

    If both names hold a cache, the one with keys and values counts: PEFT passes its prefix by the older name, along
    with the new, empty cache of `generate`.

    Raises:
        TypeError: A cache is not of a class of transformers, such as the tuples of its earlier versions.
    """
    caches = [kwargs[each] for each in ("cache", "past_key_values") if kwargs.get(each) is not None]
    for cache in caches:
        if not isinstance(cache, Cache):
            raise TypeError(
                f"{name}: must be a Cache of transformers, is a {type(cache).__name__}; EncoderDecoderCache(layers) "
                f"makes one from a tuple of each layer's keys and values, (self, self, cross, cross)"
            )
    caches.sort(key=lambda cache: cache.get_seq_length(), reverse=True)
    others = {each: value for each, value in kwargs.items() if each not in ("cache", "past_key_values")}
    return {**others, name: caches[0]} if caches else others


def as_encoder_outputs(given: Any) -> BaseModelOutput:
    """Copy an encoder's output (any output class, mapping or tuple) into a `BaseModelOutput`.

    Raises:
        TypeError: It does not begin with hidden states `[batch, source, d_model]`.
    """
    names = ("last_hidden_state", "hidden_states", "attentions")
    values = dict(zip(names, given, strict=False)) if isinstance(given, tuple | list) else given
    encoded = values.get(names[0]) if isinstance(values, Mapping) else None
    if not isinstance(encoded, torch.Tensor) or encoded.dim() != 3:
        raise TypeError(
            f"encoder_outputs: must be what the encoder returns, or a tuple such as (last_hidden_state,), of "
            f"[batch, source, d_model]; is a {type(given).__name__}"
        )
    return BaseModelOutput(*map(values.get, names))
