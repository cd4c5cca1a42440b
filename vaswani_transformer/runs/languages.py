"""Languages between which models translate, for the recipes that score or read sentence pairs."""

from collections.abc import Sequence

from transformers import PreTrainedConfig

from ..model.languages_vaswani import Directions


def languages_to_score(
    configs: Sequence[PreTrainedConfig], source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Languages to translate from and into: `source` and `target`, or else the first model's; None for an unknown one.

    Raises:
        ValueError: A model does not translate between them, or has several directions and `target` is None.
    """
    if configs:
        directions = Directions(configs[0])
        default_source, default_target = directions.languages(directions.tag(source, target, is_required=True))
        source, target = source or default_source, target or default_target
    for config in configs:
        Directions(config).tag(source, target)
    return source, target
