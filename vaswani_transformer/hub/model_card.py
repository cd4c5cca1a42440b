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

    What the results lack, the card does not mention.

    Args:
        path: The file to write, README.md in the model's directory.
        results: What `recipes/train_wmt.py` writes as `all_results.json`.
        picture: Name of the learning curve beside the card.
    """
    source, target = results["data"]["source_language"], results["data"]["target_language"]
    data = _metadata(results, source, target)
    sections = [
        f"---\n{data.to_yaml()}\n---\n\n# {data.model_name}",
        'The Transformer of ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762), trained from scratch to '
        f"translate from `{source}` to `{target}`.",
        _scores(results),
        _use(results, source, target),
        _training(results),
        f"![Learning curve]({picture})" if picture else "",
        _by_length(results),
        _limits(results, source, target),
    ]
    ModelCard("\n\n".join(section for section in sections if section) + "\n").save(path)


def _metadata(results: dict[str, Any], source: str, target: str) -> ModelCardData:
    return ModelCardData(
        language=[source, target],
        license=results["data"].get("license"),
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vaswani", "translation"],
        datasets=results["data"].get("datasets") or None,
        metrics=["sacrebleu"] if _scored(results) else None,
        model_name=(results["run"].get("repository") or f"vaswani-{source}-{target}").split("/")[-1],
        eval_results=_eval_results(results, source, target) or None,
    )


def _corpus(files: list[str]) -> str:
    """The files of a corpus, each with the folder that it lies in, or the name of a dataset."""
    return " and ".join("/".join(Path(file).parts[-2:]) for file in files)


def _scored(results: dict[str, Any]) -> list[str]:
    return [name for name in ("validation", "test", "test_last_checkpoint") if name in results]


def _eval_results(results: dict[str, Any], source: str, target: str) -> list[EvalResult]:
    if "test" not in results:
        return []
    data, bleu = results["data"], results["test"]["bleu"]
    name = _corpus(data["test"])
    from_hub = data["test"][0] in (data.get("datasets") or [])
    return [
        EvalResult(
            task_type="translation",
            task_name=f"Translation {source}-{target}",
            dataset_type=name,
            dataset_name=name,
            dataset_config=data.get("dataset_config") if from_hub else None,
            dataset_split="test" if from_hub else None,
            metric_type="sacrebleu",
            metric_name=f"sacreBLEU {bleu['signature']}",
            metric_value=round(bleu["score"], 2),
        )
    ]


def _scores(results: dict[str, Any]) -> str:
    if not _scored(results):
        return ""
    model = "averaged model" if results["training"]["averaged"] else "last step"
    titles = {
        "validation": f"validation, {model}",
        "test": f"test, {model}",
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


def _by_length(results: dict[str, Any]) -> str:
    groups = results.get("test", {}).get("by_source_length")
    if not groups:
        return ""
    rows = ["## BLEU by source length", "", "| words of the source | sentences | sacreBLEU |", "|---|---|---|"]
    for group in groups:
        lengths = f"{group['shortest']} to {group['longest']}" if group["longest"] else f"{group['shortest']} or more"
        rows.append(f"| {lengths} | {group['sentences']:,} | {group['sacrebleu']:.2f} |")
    return "\n".join([*rows, "", "The test set, by words between white space; a group of few sentences says little."])


def _use(results: dict[str, Any], source: str, target: str) -> str:
    example = results["examples"][0]["source"] if results.get("examples") else "..."
    repository = results["run"].get("repository")
    model = f'model="{repository or "path/to/this/directory"}"'
    ours = _snippet("import vaswani_transformer\n", f'"translation_{source}_to_{target}", {model}', example)
    if not repository:
        return f"## Use\n\n{ours}"
    remote = _snippet("", f'"translation", {model}, trust_remote_code=True', example)
    return "\n\n".join(
        [
            "## Use",
            "With transformers and PyTorch alone; transformers then runs the code in this repository:",
            remote,
            "With the package `vaswani_transformer` installed, whose code runs instead:",
            ours,
        ]
    )


def _snippet(first_lines: str, arguments: str, example: str) -> str:
    return f"""```python
{first_lines}from transformers import pipeline

translator = pipeline({arguments})
translator({example!r})
```"""


def _training(results: dict[str, Any]) -> str:
    training, data, run = results["training"], results["data"], results["run"]
    dropped = ", ".join(f"{count} {reason}" for reason, count in data["cleaning"].items() if reason != "kept")
    facts = [
        f"Corpus: {_corpus(data['train'])}; {data['cleaning']['kept']:,} pairs kept; dropped: {dropped}.",
        f"Command: `{run['command']}`",
        f"Commit: `{run['commit']}`, {run['date']}",
        f"Hardware: {run['hardware']}, {training['processes']} process(es)",
        f"Time: {training['seconds'] / 60:.1f} minutes of training, {training['steps']} steps, "
        f"{training['epochs']:.1f} epochs, {training['target_tokens']:,} target tokens"
        + (f"; resumed from {training['resumed_from']}" if training["resumed_from"] else ""),
        *(_cost(training["cost"]) if "cost" in training else []),
        f"Padding: {training['padding_share']:.1%} of all tokens",
        f"Parameters: {results['model']['parameters']:,}",
        *([f"Averaged: {', '.join(training['averaged'])}"] if training["averaged"] else []),
        f"Versions: {', '.join(f'{name} {version}' for name, version in run['versions'].items())}",
    ]
    return "\n".join(["## Training", "", *(f"- {fact}" for fact in facts), "", *_settings(results)])


def _cost(cost: dict[str, Any]) -> list[str]:
    """What `evaluation.training_cost` found, beside Table 2."""
    dtype = f" in {cost['dtype']}" if "dtype" in cost else ""
    return [
        f"Cost: {_scientific(cost['by_the_papers_accounting'])} FLOPs by the paper's accounting, time x devices x rate "
        f"(the paper: base 3.3e18, big 2.3e19); {_scientific(cost['counted'])} FLOPs, {cost['utilisation']:.1%} of "
        "that, counted from the matrix products",
        f"Rate: {_scientific(cost['rate'])} FLOPs a second on each device, measured by large matrix products{dtype}",
    ]


def _scientific(number: float) -> str:
    mantissa, exponent = f"{number:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _settings(results: dict[str, Any]) -> list[str]:
    """The settings of the run beside the paper's, as the lines of a table."""
    values = {**results["model"], **results["settings"], "steps": results["training"]["steps"]}
    reported = [field for field in _PAPER_SETTINGS if field in values]
    rows = [f"| {field} | {_grouped(values[field])} | {_PAPER_SETTINGS[field]} |" for field in reported]
    return ["| setting | this run | the paper |", "|---|---|---|", *rows]


def _grouped(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,g}"


def _limits(results: dict[str, Any], source: str, target: str) -> str:
    longest = results["data"].get("max_length")
    longer = f"sentences of more than {longest} sub-words, which training left out" if longest else "longer sentences"
    return (
        f"## Limits\n\nThe model translates from `{source}` to `{target}` only. It has seen the training corpus named "
        f"above and nothing else, and has learned its errors and its biases too. Text of another kind, {longer}, and "
        "words that are rare there will be translated badly; no person has checked its output."
    )
