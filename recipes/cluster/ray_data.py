"""Translate a directory of shards on a Ray cluster, by Ray Data: one actor a GPU, or a core.

    python recipes/translate.py --model runs/demo --input news.en --output news.de --work work --lines_per_shard 50000
    python recipes/cluster/ray_data.py --work work --actors 8 --num_gpus 1
    python recipes/translate.py --work work --collect

All machines see the directory. Ray starts an actor that dies again, and repeats its shard; after the end of this
program, the same command continues with the shards that are missing. Needs Ray: `pip install "ray[data]"`.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path

import numpy as np
import ray

from vaswani_transformer import ShardedTranslation
from vaswani_transformer.options.arguments import COUNT, NOT_NEGATIVE, RecipeParser, option


@dataclass
class RayArguments:
    """Options of ray_data.py."""

    work: str = option(MISSING, "Directory of shards, made by translate.py.")
    actors: int = option(1, "Copies of the model.", COUNT)
    num_gpus: float = option(0.0, "GPUs of an actor.", NOT_NEGATIVE)
    trust_remote_code: bool = option(False, "Run code that comes with a model; only if you trust its author.")


class TranslateShards:
    """An actor with the model, which translates the shards whose numbers it is given."""

    def __init__(self, work: str, trust_remote_code: bool) -> None:
        self.work = ShardedTranslation(work, trust_remote_code=trust_remote_code)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for number in batch["shard"].tolist():
            self.work.translate(number)
        return batch


def main() -> None:
    (args,) = RecipeParser((RayArguments,)).parse()
    folder = Path(args.work).resolve()
    missing = ShardedTranslation(folder).progress().missing
    print(f"{len(missing)} shards to translate")
    if missing:
        ray.data.from_items([{"shard": number} for number in missing]).map_batches(
            TranslateShards,
            fn_constructor_args=(str(folder), args.trust_remote_code),
            batch_size=1,
            concurrency=args.actors,
            num_gpus=args.num_gpus,
        ).materialize()


if __name__ == "__main__":
    main()
