"""Languages of a model: one direction, or several, where each source begins with the tag of its target language."""

import re

import torch
from transformers import PreTrainedConfig
from transformers.models.whisper.tokenization_whisper import LANGUAGES


def language_tag(language: str) -> str:
    """The special token that begins a source to be translated into a language (Johnson et al., 2017)."""
    return f"<2{language}>"


def is_language_tag(token: str) -> bool:
    """Whether a special token is the tag of a language."""
    return token.startswith("<2") and token.endswith(">")


def language_name(code: str) -> str:
    """The English name of a language; its code, if the name is unknown."""
    return LANGUAGES.get(re.split("[-_]", code.lower())[0], "").title() or code


def is_same_language(one: str, other: str) -> bool:
    """Whether two codes name one language, or one names a variety of the other, as "en" and "en_US"."""
    subtags = (re.split("[-_]", code.lower()) for code in (one, other))
    return all(a == b for a, b in zip(*subtags, strict=False))


def target_tag(config: PreTrainedConfig, source: str | None, target: str | None) -> str | None:
    """The tag for a pair of languages; each may be None.

    Returns:
        None if the model has one direction and no tags, or if the languages leave the target open.

    Raises:
        ValueError: The model does not translate from `source` or into `target`. The languages of a model may be
            unknown, which permits all.
    """
    if not (tags := getattr(config, "language_tags", None)):
        for asked, side, direction in ((source, "source", "from"), (target, "target", "into")):
            own = getattr(config, f"{side}_language", None)
            if asked and own and not is_same_language(asked, own):
                raise ValueError(f"the model translates {direction} {own}, not {asked}; choose a model for that pair")
        return None
    sources = [code for code in tags if not source or is_same_language(source, code)]
    targets = [code for code in tags if not target or is_same_language(target, code)]
    targets = [code for code in targets if set(sources) - {code}]
    if not targets:
        asked = " ".join([*(["from", source] if source else []), *(["into", target] if target else [])])
        raise ValueError(f"the model translates between {' and '.join(tags)}, not {asked}; choose two of these")
    return language_tag(targets[0]) if len(targets) == 1 else None


def direction(config: PreTrainedConfig, tag: str | None = None) -> tuple[str | None, str | None]:
    """Languages to translate from and into, by the tag of a source; None for what is unknown."""
    target = next((code for code in getattr(config, "language_tags", None) or () if language_tag(code) == tag), None)
    if target is None:
        return getattr(config, "source_language", None), getattr(config, "target_language", None)
    sources = [code for code in config.language_tags if code != target]
    return sources[0] if len(sources) == 1 else None, target


def split_tag(config: PreTrainedConfig, text: str, tag: str | None = None) -> tuple[str | None, str]:
    """The tag that a text begins with, or else the one given, and the text without it.

    Raises:
        ValueError: The text begins with another tag than the one given.
    """
    tags = map(language_tag, getattr(config, "language_tags", None) or ())
    own = next((each for each in tags if text.lstrip().startswith(each)), None)
    if own is None:
        return tag, text
    if tag not in (None, own):
        raise ValueError(f"the text begins with {own}, but {tag} is asked for; leave one of the two out")
    return own, text.lstrip().removeprefix(own).removeprefix(" ")


def required_tag(config: PreTrainedConfig, target: str | None) -> str | None:
    """The tag for a target language; None if the model has one direction.

    Raises:
        ValueError: The model does not translate into `target`, or has several directions and `target` is None.
    """
    tag = target_tag(config, None, target)
    if tag is None and (tags := getattr(config, "language_tags", None)):
        raise ValueError(
            f"target_language: the model translates between {' and '.join(tags)}; give the one to translate into"
        )
    return tag


def tagged(config: PreTrainedConfig, text: str, target: str | None) -> str:
    """The text after the tag of its target language, if the model has several directions; it may have the tag already.

    Raises:
        ValueError: As by `required_tag`; or the text begins with the tag of another language.
    """
    tag, text = split_tag(config, text, target_tag(config, None, target))
    return with_tag(text, tag or (required_tag(config, target) if text.strip() else None))


def with_tag(text: str, tag: str | None) -> str:
    """The text after a tag; blank text stays as it is."""
    return f"{tag} {text}" if tag and text.strip() else text


def require_tags(config: PreTrainedConfig, input_ids: torch.Tensor) -> None:
    """Raise a ValueError if the model has several directions, and a row of `[batch, source]` ids begins with no tag."""
    if not (tags := getattr(config, "language_tags", None)):
        return
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    is_text = input_ids.ne(config.pad_token_id)  # [batch, source]
    first = input_ids.gather(1, is_text.long().argmax(dim=1, keepdim=True))  # [batch, 1], padding of a blank row
    allowed = torch.tensor([*tags.values(), config.pad_token_id, *ends], device=input_ids.device)
    if not torch.isin(first, allowed).all():
        raise ValueError(
            f"the model translates between {' and '.join(tags)}, and a source does not say into which; begin it with "
            f"{' or '.join(map(language_tag, tags))}, or name the target: tgt_lang of the pipeline, --target_language"
        )
