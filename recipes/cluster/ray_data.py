"""Translate a file in shards on a Ray cluster, by Ray Data: one actor a GPU, or a core.

    python recipes/cluster/ray_data.py --model runs/demo --input news.en --output news.de --shards 100 --actors 8
    cat news.de.shards/*-of-00100 > news.de

All machines see the working directory. Ray starts an actor that dies again, and repeats its shard; after the end of
this program, the same command continues with the shards that are missing. Needs Ray: `pip install "ray[data]"`.
"""

import os
from dataclasses import dataclass

import numpy as np
import ray

from vaswani_transformer.decoding.sharded_translation import ShardedTranslation
from vaswani_transformer.decoding.translation_options import TranslationOptions
from vaswani_transformer.options.arguments import COUNT, NOT_NEGATIVE, option
from vaswani_transformer.options.parser import RecipeParser


@dataclass
class RayArguments(TranslationOptions):
    """Options of ray_data.py."""

    shards: int = option(100, "Into how many ranges of lines the input is divided.", COUNT)
    actors: int = option(1, "Copies of the model.", COUNT)
    num_gpus: float = option(0.0, "GPUs of an actor.", NOT_NEGATIVE)


class TranslateShards:
    """An actor with the model, which translates the shards whose numbers are passed to it."""

    def __init__(self, args: RayArguments, directory: str) -> None:
        os.chdir(directory)
        self.translation = ShardedTranslation(args, args.shards)
        self.translation.begin()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.translation.translate(batch["shard"].tolist())
        return batch


def main() -> None:
    (args,) = RecipeParser((RayArguments,)).parse()
    missing = ShardedTranslation(args, args.shards).begin()
    print(f"{len(missing)} shards to translate")
    if missing:
        ray.data.from_items([{"shard": number} for number in missing]).map_batches(
            TranslateShards,
            fn_constructor_args=(args, os.getcwd()),
            batch_size=1,
            concurrency=args.actors,
            num_gpus=args.num_gpus,
        ).materialize()


if __name__ == "__main__":
    main()
