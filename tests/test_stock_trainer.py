"""`recipes/benchmarks/stock_trainer.py` trains and scores the peer, of the same sizes, on the same corpus."""

import json

import pytest
import yaml
from helpers import REPOSITORY, run_python

from vaswani_transformer.data.phrasebook.corpus import phrasebook


pytestmark = pytest.mark.system


@pytest.mark.parametrize("limit", [{"max_steps": 2}, {"max_steps": 1000, "max_minutes": 0.0001}])
def test_the_peer_trains_and_is_scored(saved_model, tmp_path, limit):
    for split, pairs in (("train", phrasebook("validation")[:40]), ("test", phrasebook("test")[:2])):
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {
        "train": ["train.en", "train.de"],
        "test": ["test.en", "test.de"],
        "source_language": "en",
        "target_language": "de",
        "warmup_steps": 4,
        **limit,
    }
    (tmp_path / "like.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    script = str(REPOSITORY / "recipes" / "benchmarks" / "stock_trainer.py")
    options = {"like": "like.yaml", "ours": str(saved_model), "output": "out", "batch_size": "8", "bf16": "false"}
    command = [script, *(word for name, value in options.items() for word in (f"--{name}", value))]
    result = run_python(command, folder=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    results = json.loads((tmp_path / "out" / "stock_trainer.json").read_text(encoding="utf-8"))
    assert results["steps"] == (1 if "max_minutes" in limit else 2)
    assert results["target_tokens_per_second"] > 0
    assert results["bleu"]["signature"].startswith("nrefs:1")
