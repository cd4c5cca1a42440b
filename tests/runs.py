"""Records of runs, for the tests of what is reported of them."""

import copy
from typing import Any

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.experiments.comparison import PAPER_SCORES
from vaswani_transformer.runs.fine_tuning import read_training_options
from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.system.typed_json import from_json


_SCORES = {
    "sentences": 1014,
    "perplexity": {"perplexity": 5.4321, "nats_per_token": 1.6923, "tokens": 16580},
    "bleu": {
        "score": 41.23456,
        "precisions": [71.7, 48.6, 35.3, 25.6],
        "brevity_penalty": 0.93139,
        "hypothesis_length": 11880,
        "reference_length": 12000,
        "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    },
    "chrf": {"score": 60.1234, "signature": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"},
    "seconds": 8.125,
    "by_source_length": [
        {"shortest": 1, "longest": 10, "sentences": 1234, "sacrebleu": 31.25},
        {"shortest": 61, "longest": None, "sentences": 7, "sacrebleu": 8.0},
    ],
}
# The sources in the place of translations, which have no perplexity.
_COPY = {name: value for name, value in _SCORES.items() if name not in ("perplexity", "seconds")}
_RESULTS = {
    "run": {
        "command": "python recipes/train_wmt.py --max_steps 6000",
        "commit": "31e3b36a105b7266c9336be7cd25a926b1d849cc",
        "date": "2030-01-31",
        "hardware": "2 x Device 80",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "repository": "user/vaswani-tiny",
    },
    "data": {
        "source_language": "en",
        "target_language": "de",
        "train": ["data/train.en.gz", "data/train.de.gz"],
        "test": ["data/test.en.gz", "data/test.de.gz"],
        "dataset_config": None,
        "max_length": 250,
        "license": "cc-by-4.0",
        "attribution": "the photographers of Flickr",
        "domain": "image captions",
        "datasets": ["user/pairs"],
        "cleaning": {"empty": 3, "too_long": 2, "ratio": 1, "kept": 28994},
        "max_ratio": 5.0,
    },
    "model": {},
    "settings": {
        "source_tokens": 1500,
        "target_tokens": 1400,
        "warmup_steps": 1000,
        "learning_rate_factor": 0.8,
        "lr_scheduler_type": "inverse_sqrt",
        "learning_rate": 5e-5,
        "precision": "bf16",
        "seed": 42,
        "alpha": 0.6,
        "average_last": 5,
        **dict.fromkeys(("cooldown", "weight_decay", "max_grad_norm"), 0.0),
        **dict.fromkeys(("cooccurrence_embeddings", "muon"), False),
        **{"adam_beta1": 0.9, "adam_beta2": 0.98, "adam_epsilon": 1e-9},
    },
    "training": {
        "seconds": 3000.0,
        "processor_seconds": 5900.0,
        "cost": {
            "by_the_papers_accounting": 2.9628e15,
            "counted": 1.096e15,
            "rate": 9.876e11,
            "utilisation": 0.36992,
            "dtype": "bfloat16",
        },
        "steps": 6000,
        "epochs": 18.5,
        "target_tokens": 7654321,
        "padding_share": 0.0321,
        "processes": 1,
        "averaged": ["checkpoint-5500", "checkpoint-6000"],
        "resumed_from": None,
        "limits": {"max_steps": 6000},
        "loss_by_tenth": [5.2, 3.4, 2.8, 2.5, 2.3, 2.1, 1.9, 1.75, 1.6, 1.45],
    },
    "validation": _SCORES,
    "test": _SCORES,
    "test_copy": _COPY | {"bleu": _SCORES["bleu"] | {"score": 2.71828}, "chrf": _SCORES["chrf"] | {"score": 17.25}},
    "examples": [
        {"source": "It's a dog.", "translation": "Ein Hund.", "reference": "Es ist ein Hund.", "chrf": 43.217},
    ],
    "robustness": {
        "changes": {
            "<b>...</b> around": {
                **{"lines": 40, "plain_bleu": 41.006, "bleu": 33.504, "plain_chrf": 61.25, "chrf": 52.125},
                "same": 17,
            }
        },
        "strings": {"numbers": {"lines": 38, "copied": 19}},
    },
}


def run_results(variant: str = "base", **sizes: Any) -> dict[str, Any]:
    """The content of `all_results.json`, every field given that a training writes."""
    results = copy.deepcopy(_RESULTS)
    results["model"] = {"parameters": 7577600, **VaswaniConfig.from_variant(variant, **sizes).to_dict()}
    return results


def run_record(variant: str = "base", bleu: float = 41.2, perplexity: float = 5.4, **training: Any) -> RunRecord:
    """A training of a row of Table 3 with these scores on the validation set."""
    results = run_results(variant)
    results["training"] |= training
    results["validation"]["bleu"]["score"] = bleu
    results["validation"]["perplexity"]["perplexity"] = perplexity
    return from_json(RunRecord, results)


def sweep_as_in_paper(deviation: float = 0.0, sign: float = 1.0) -> dict[str, dict[int, RunRecord]]:
    """Three seeds of every row with the paper's scores, or their opposite, and by a little more or less."""
    return {
        row: {
            seed: run_record(row, 50 + sign * bleu + deviation * step, perplexity)
            for seed, step in ((1, -1), (2, 0), (3, 1))
        }
        for row, (perplexity, bleu) in PAPER_SCORES.items()
    }


def training_options(words: list[str]) -> tuple[Any, ...]:
    """The options of data, model and training that train_wmt.py reads from a command line."""
    parser, options = read_training_options(words)
    return parser.fill(options)
