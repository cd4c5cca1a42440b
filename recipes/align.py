"""Align the words of a parallel corpus by a translation model's encoder-decoder attention.

    python recipes/align.py --model runs/en-de --corpus news.en news.de --output news.align
    accelerate launch recipes/align.py --model runs/en-de --reverse_model runs/de-en --corpus valid.en valid.de \
        --output valid.align

The output has a line for each pair, in Pharaoh format: "0-0 1-2" links the first words of both sentences, and the
second word of the source to the third of the target. White space divides sentences into words, and each word of the
target has one link, to the source word with the largest attention.

Without `--reverse_model`, the attention heads are those that the model has kept, or else all of its last layer. With it
heads of both models are chosen: those whose alignments of every other of the first `--choose_pairs` pairs agree most,
at the step that predicts a token or at the next (Chen et al., 2020). If they agree more than all heads of the last
layers, in the pairs between, both models keep them in their configurations, so that the pipeline and translate.py, with
`return_alignment`, use them, too. A link is then chosen by the product of both models' attention, and `--intersect`
writes only links that are the best of their source word, too: fewer, and more of them are right. A model of both
directions can be its own reverse model; it has the same heads in both.

Statistical aligners, such as eflomal, make far fewer errors (`model_cards/benchmarks/alignment.md`). Use one where the
links themselves matter.
"""

from dataclasses import dataclass

from rich.table import Table

from vaswani_transformer.decoding.alignment import Aligner, ChosenHeads, choose_heads
from vaswani_transformer.io.console import PlainConsole
from vaswani_transformer.io.files import atomic_write
from vaswani_transformer.launch.faults import joined_processes
from vaswani_transformer.launch.processes import on_main_process
from vaswani_transformer.model.scores_vaswani import AlignmentHeads
from vaswani_transformer.options.arguments import COUNT, option, refuse_unused
from vaswani_transformer.options.parser import RecipeParser
from vaswani_transformer.runs.pair_arguments import DirectedModel, PairArguments


@dataclass
class AlignArguments(PairArguments):
    """Options of align.py; the output is a file."""

    choose_pairs: int = option(1000, "With a reverse model: pairs on which to choose the heads.", COUNT)
    intersect: bool = option(False, "With a reverse model: write only links that are the best of both their words.")

    def __post_init__(self) -> None:
        if self.reverse_model is None:
            advice = "it is for two models; give --reverse_model, or leave this out"
            refuse_unused(self, dict.fromkeys(("choose_pairs", "intersect"), advice))


def main() -> None:
    (args,) = RecipeParser((AlignArguments,)).parse()
    with joined_processes("align.py", args.timeout_minutes, "repeat the command"):
        run(args)


def run(args: AlignArguments) -> None:
    args.require_output()
    models = args.open_models()
    is_same = False
    if len(models) == 2:
        for model in models:
            model.saved.require_updatable("alignment_heads")
        is_same = models[0].saved.directory.samefile(models[1].saved.directory)
        if is_same and models[0].tag is None:
            raise ValueError("reverse_model: is the model too, which translates in one direction only; name another")
    corpus = args.load_corpus(models[0].languages)
    sources, targets = ([pair[language] for pair in corpus["translation"]] for language in models[0].languages)
    aligners = [
        Aligner(args.load(model.saved), model.saved.tokenizer, model.tag, args.tokens_per_batch) for model in models
    ]
    heads = [AlignmentHeads.for_model(aligner.model) for aligner in aligners]  # refuses models that cannot align
    if len(models) == 2:
        first = slice(args.choose_pairs)
        chosen = choose_heads(aligners[0], aligners[1], sources[first], targets[first], is_same)
        on_main_process(lambda: show_agreement(chosen))
        if chosen.agreement > chosen.agreement_before:
            heads = [chosen.forward, chosen.backward]
            on_main_process(lambda: keep_heads(models, heads))
        pairs = aligners[0].align_with(aligners[1], sources, targets, heads, args.intersect)
    else:
        pairs = [links for (links,) in aligners[0].align(sources, targets, heads)]
    lines = (" ".join(f"{source}-{target}" for source, target in links) + "\n" for links in pairs)
    on_main_process(lambda: atomic_write(args.output, "".join(lines)))


def show_agreement(chosen: ChosenHeads) -> None:
    """Show how well the chosen heads agree, and what follows from it."""
    console = PlainConsole()
    console.print(
        f"agreement of the chosen heads {chosen.agreement:.3f}, of all heads of the last layers "
        f"{chosen.agreement_before:.3f}"
    )
    if chosen.agreement <= chosen.agreement_before:
        console.print("the models keep the heads that they had")


def keep_heads(models: list[DirectedModel], chosen: list[AlignmentHeads]) -> None:
    """Store the heads in the configurations of the models, and show them."""
    table = Table("model", "layer and head, from 0", "step", title="Heads that align")
    for model, heads in zip(models, chosen, strict=True):
        model.saved.update_config(alignment_heads=heads.pairs, alignment_shift=heads.is_shifted)
        shown = ", ".join(f"{layer}.{head}" for layer, head in heads.pairs)
        table.add_row(str(model.saved.directory), shown, "the next" if heads.is_shifted else "its own")
    PlainConsole().print(table)


if __name__ == "__main__":
    main()
