"""Prepare training corpora ahead of time: check, learn the vocabulary, encode, clean.

    python recipes/prepare_data.py --config recipes/configs/wmt14_en_de_base.yaml
    python recipes/prepare_data.py --train train.en.xz train.de.xz --test test.en test.de --prepared runs/data

The recipe takes the configuration and options of train_wmt.py, uses its data options, and fills the directory
`--prepared`. Training with the same options then begins at once. After an interruption, the same command continues. If
the directory was made from other files or with other options, an error names the differences, and nothing changes.

Memory grows with `--num_proc`, not with the corpus. Until everything is encoded, the directory also has a copy of the
text. A dataset on the Hub is downloaded into the cache of datasets.
"""

import time
from dataclasses import fields

from vaswani_transformer.data.overlap import describe_in_train
from vaswani_transformer.data.preparation import load_corpora
from vaswani_transformer.options.data import DataArguments
from vaswani_transformer.runs.fine_tuning import open_parent, read_training_options
from vaswani_transformer.system.faults import exit_on_error
from vaswani_transformer.system.messages import printable


SHOWN = {field.name for field in fields(DataArguments)} - {"license", "attribution", "domain", "datasets"} | {"model"}


def main() -> None:
    parser, options = read_training_options(shown=SHOWN)
    data_args, model_args, _ = parser.fill(options)
    started = time.monotonic()
    with exit_on_error(f"repeat the command to continue in {data_args.prepared}"):
        if data_args.prepared is None:
            raise ValueError("prepared: name the directory to prepare the corpora in")
        _, data_args = open_parent(model_args, data_args)
        data = load_corpora(data_args, data_args.prepared)
        for name in data.cleaning:
            print(f"{name}: {data.describe_cleaning(name)}")
        for split, corpus in data.text.items():
            print(f"{split}: {len(corpus):,} sentence pairs")
        if data.in_train:
            print(f"also in the training corpus: {describe_in_train(data.in_train)}")
        print(f"{printable(data_args.prepared)} is complete, after {time.monotonic() - started:.1f} seconds")


if __name__ == "__main__":
    main()
