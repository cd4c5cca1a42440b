"""Translate documents between a reader and a writer of datatrove, on this machine or, by its executor, on Slurm.

    python recipes/cluster/datatrove_step.py --model runs/demo --input corpus --output translated --tasks 8 --workers 2

Reads .jsonl files with "text", and writes them with its translation in metadata. datatrove gives each task some of the
files; the same command continues with tasks that are not completed. Needs datatrove: `pip install "datatrove[io]"`.
"""

from dataclasses import MISSING, dataclass
from itertools import islice
from pathlib import Path

from datatrove.data import DocumentsPipeline
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from transformers import pipeline

import vaswani_transformer  # noqa: F401  # makes the model known to transformers
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.options.parser import RecipeParser


@dataclass
class DatatroveArguments:
    """Options of datatrove_step.py."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    input: str = option(MISSING, "Folder of .jsonl files, also .gz.")
    output: str = option(MISSING, "Folder to write; its logs/ shows which tasks are completed.")
    tasks: int = option(1, "Into how many parts the files are divided.", COUNT)
    workers: int = option(1, "How many tasks run at once.", COUNT)
    documents_at_once: int = option(10_000, "How many documents are sorted by length into batches.", COUNT)
    target_language: str | None = option(None, "Language to translate into, of a model of both directions.")
    split_sentences: bool = option(True, "Translate texts sentence by sentence; otherwise each is one sentence.")


class Translate(PipelineStep):
    """Writes the translation of a document's text into its metadata.

    Args:
        model: Directory of a saved model, or its name on the Hub.
        documents_at_once: Number of documents that are read before they are sorted by length into batches.
        options: Keywords of the pipeline, such as `split_sentences`.
    """

    name = "Translate"
    type = "TRANSLATION"

    def __init__(self, model: str, documents_at_once: int = 10_000, **options: object) -> None:
        super().__init__()
        self.model, self.documents_at_once, self.options = model, documents_at_once, options

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        translate = pipeline("translation", self.model)
        documents = iter(data or ())
        while batch := list(islice(documents, self.documents_at_once)):
            with self.track_time("batch"):
                records = translate([document.text for document in batch], **self.options)
            for document, record in zip(batch, records, strict=True):
                document.metadata["translation"] = record["translation_text"]
                self.update_doc_stats(document)
            yield from batch


def main() -> None:
    (args,) = RecipeParser((DatatroveArguments,)).parse()
    output = Path(args.output).resolve()
    options = {"split_sentences": args.split_sentences, "tgt_lang": args.target_language}
    steps = [
        JsonlReader(str(Path(args.input).resolve())),
        Translate(args.model, args.documents_at_once, **options),
        JsonlWriter(str(output / "documents")),
    ]
    LocalPipelineExecutor(steps, tasks=args.tasks, workers=args.workers, logging_dir=str(output / "logs")).run()


if __name__ == "__main__":
    main()
