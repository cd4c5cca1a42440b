"""A model card from what a training run measured, and from nothing else."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData


# The paper's setting of each field that a run reports (Table 3; sections 5.1, 5.3, 5.4 and 6.1).
_PAPER_SETTINGS = {
    "encoder_layers": "6",
    "decoder_layers": "6",
    "d_model": "512 (big: 1024)",
    "d_ff": "2048 (big: 4096)",
    "num_heads": "8 (big: 16)",
    "d_k": "64",
    "d_v": "64",
    "dropout": "0.1 (big: 0.3)",
    "label_smoothing": "0.1",
    "vocab_size": "about 37,000 (en-fr: 32,000)",
    "source_tokens": "25,000",
    "target_tokens": "25,000",
    "warmup_steps": "4,000",
    "learning_rate_factor": "1",
    "average_last": "5 (big: 20)",
    "steps": "100,000 (big: 300,000)",
}


def write_model_card(path: str | Path, results: dict[str, Any], picture: str | None = "learning_curve.png") -> None:
    """Write the card of a run as Markdown with the metadata that the Hub reads.

    Args:
        path: The file to write, README.md in the model's directory.
        results: What `recipes/train_wmt.py` writes as `all_results.json`.
        picture: Name of the learning curve beside the card.
    """
    source, target = results["data"]["source_language"], results["data"]["target_language"]
    name = f"vaswani-{source}-{target}"
    data = ModelCardData(
        language=[source, target],
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vaswani", "translation"],
        metrics=["sacrebleu"] if _scored(results) else None,
        model_name=name,
        eval_results=_eval_results(results, source, target) or None,
    )
    sections = [
        f"---\n{data.to_yaml()}\n---\n\n# {name}",
        f'The Transformer of "Attention Is All You Need", trained from scratch to translate from `{source}` to '
        f"`{target}`.",
        _scores(results),
        _use(results, source, target),
        _training(results),
        f"![Learning curve]({picture})" if picture else "",
        "## Limits\n\nThe model has seen the training corpus named above and nothing else. Text of another kind, "
        "longer sentences, and words that are rare there will be translated badly; no person has checked its output.",
    ]
    ModelCard("\n\n".join(section for section in sections if section) + "\n").save(path)


def _corpus(files: list[str]) -> str:
    """The files of a corpus, each with the folder that it lies in, or the name of a dataset."""
    return " and ".join("/".join(Path(file).parts[-2:]) for file in files)


def _scored(results: dict[str, Any]) -> list[str]:
    return [name for name in ("validation", "test", "test_last_checkpoint") if name in results]


def _eval_results(results: dict[str, Any], source: str, target: str) -> list[EvalResult]:
    if "test" not in results:
        return []
    name = _corpus(results["data"]["test"])
    bleu = results["test"]["bleu"]
    return [
        EvalResult(
            task_type="translation",
            task_name=f"Translation {source}-{target}",
            dataset_type=name,
            dataset_name=name,
            metric_type="sacrebleu",
            metric_name=f"sacreBLEU {bleu['signature']}",
            metric_value=round(bleu["score"], 2),
        )
    ]


def _scores(results: dict[str, Any]) -> str:
    if not _scored(results):
        return ""
    titles = {
        "validation": "validation, averaged model",
        "test": "test, averaged model",
        "test_last_checkpoint": "test, last checkpoint",
    }
    rows = ["## Results", "", "| set, model | sentences | sacreBLEU | perplexity per sub-word |", "|---|---|---|---|"]
    for split in _scored(results):
        scores = results[split]
        rows.append(
            f"| {titles[split]} | {scores['sentences']} | {scores['bleu']['score']:.2f} | "
            f"{scores['perplexity']['perplexity']:.2f} |"
        )
    first = results[_scored(results)[0]]
    return "\n".join([*rows, "", f"sacreBLEU signature: `{first['bleu']['signature']}`; decoding as in section 6.1."])


def _use(results: dict[str, Any], source: str, target: str) -> str:
    example = results["examples"][0]["source"] if results.get("examples") else "..."
    return f"""## Use

```python
import vaswani_transformer
from transformers import pipeline

translator = pipeline("translation_{source}_to_{target}", model="path/to/this/directory")
translator({example!r})
```"""


def _training(results: dict[str, Any]) -> str:
    training, data, run = results["training"], results["data"], results["run"]
    settings = {**results["model"], **results["settings"], "steps": training["steps"]}
    rows = [f"| {field} | {settings[field]:,g} | {paper} |" for field, paper in _PAPER_SETTINGS.items()]
    dropped = ", ".join(f"{count} {reason}" for reason, count in data["cleaning"].items() if reason != "kept")
    return "\n".join(
        [
            "## Training",
            "",
            f"- Corpus: {_corpus(data['train'])}; {data['cleaning']['kept']:,} pairs kept; dropped: {dropped}.",
            f"- Command: `{run['command']}`",
            f"- Commit: `{run['commit']}`, {run['date']}",
            f"- Hardware: {run['hardware']}, {training['processes']} process(es)",
            f"- Time: {training['seconds'] / 60:.1f} minutes of training, {training['steps']} steps, "
            f"{training['epochs']:.1f} epochs, {training['target_tokens']:,} target tokens"
            + (f"; minutes and tokens since {training['resumed_from']}" if training["resumed_from"] else ""),
            f"- Padding: {training['padding_share']:.1%} of all tokens",
            f"- Parameters: {results['model']['parameters']:,}",
            f"- Averaged: {', '.join(training['averaged'])}",
            f"- Versions: {', '.join(f'{name} {version}' for name, version in run['versions'].items())}",
            "",
            "| setting | this run | the paper |",
            "|---|---|---|",
            *rows,
        ]
    )
