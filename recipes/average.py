"""Average the last checkpoints of a training into a model (6.1).

    python recipes/average.py --run runs/craft_parsing --last 20 --output runs/craft_average_20
    python recipes/average.py --checkpoints runs/demo/checkpoint-900 runs/demo/checkpoint-1200 --output runs/average

The configuration, the generation_config and the tokenizer are those of the last checkpoint.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path

import torch

from vaswani_transformer import average_checkpoints
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.model.configuration_vaswani import drop_measurements
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.system.files import atomic_directory
from vaswani_transformer.system.manifests import MODEL_FILES, Manifest
from vaswani_transformer.training.averaging import checkpoints_to_average
from vaswani_transformer.training.checkpoints import checkpoint_damage


@dataclass
class AverageArguments:
    """Options of average.py."""

    run: str | None = option(None, "Output directory of a training, whose last checkpoints are averaged.")
    last: int | None = option(None, "With --run: number of last checkpoints to average.", COUNT)
    checkpoints: list[str] | None = option(None, "Checkpoints to average, instead of --run and --last.")
    output: str = option(MISSING, "Directory to create.")

    def __post_init__(self) -> None:
        if (self.run is None) == (self.checkpoints is None) or (self.run is None) != (self.last is None):
            raise ValueError("run, last, checkpoints: give run and last, or checkpoints")

    def directories(self) -> list[Path]:
        """The checkpoints to average, complete as far as their manifests say.

        Raises:
            ValueError: One is missing or damaged, or the run has too few.
        """
        if self.run is None or self.last is None:
            checkpoints = [Path(each) for each in self.checkpoints or []]
        else:
            checkpoints = [*checkpoints_to_average(self.run).values()]
            if len(checkpoints) < self.last:
                raise ValueError(f"run, last: {self.run} has {len(checkpoints)} checkpoints; give at most as many")
            checkpoints = checkpoints[-self.last :]
        for directory in checkpoints:
            if (damage := checkpoint_damage(directory, needs_manifest=False)) is not None:
                raise ValueError(f"run, checkpoints: {directory}: {damage}; name the others by --checkpoints")
        return checkpoints


def main() -> None:
    with recipe_options(AverageArguments) as args:
        with atomic_directory(args.output) as directory:
            checkpoints = args.directories()
            weights = average_checkpoints(checkpoints)
            saved = open_model(checkpoints[-1], option="checkpoints")
            model = saved.load(torch.float32)
            model.load_state_dict(weights, strict=False)  # tied tensors are saved once
            model.config.use_cache = True  # which a training disables
            drop_measurements(model.config)
            model.save_pretrained(directory)
            saved.tokenizer.save_pretrained(directory)
            Manifest.from_files(directory, MODEL_FILES).save(directory)
        print(f"{args.output}: the average of {', '.join(each.name for each in checkpoints)}")


if __name__ == "__main__":
    main()
