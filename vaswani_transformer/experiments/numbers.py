"""Numbers of the paper: scores (Table 3), and the cost of its trainings (Table 2, 5.2)."""

from dataclasses import dataclass

from transformers import PreTrainedConfig

from ..training.costs import training_flops


# Perplexity per word-piece and BLEU on newstest2013 (Table 3), by the names of `PAPER_VARIANTS`.
PAPER_SCORES = {
    "base": (4.92, 25.8),
    "A-h1": (5.29, 24.9),
    "A-h4": (5.00, 25.5),
    "A-h16": (4.91, 25.8),
    "A-h32": (5.01, 25.4),
    "B-dk16": (5.16, 25.1),
    "B-dk32": (5.01, 25.4),
    "C-N2": (6.11, 23.7),
    "C-N4": (5.19, 25.3),
    "C-N8": (4.88, 25.5),
    "C-d256": (5.75, 24.5),
    "C-d1024": (4.66, 26.0),
    "C-ff1024": (5.12, 25.4),
    "C-ff4096": (4.75, 26.2),
    "D-drop0.0": (5.77, 24.6),
    "D-drop0.2": (4.95, 25.5),
    "D-ls0.0": (4.67, 25.3),
    "D-ls0.2": (5.47, 25.7),
    "E-learned": (4.92, 25.7),
    "big": (4.33, 26.4),
}

# Steps and hours of training (5.2) on 8 P100 GPUs at 9.5 TFLOPS each (footnote 5).
PAPER_TRAININGS = {"base": (100_000, 12.0), "big": (300_000, 3.5 * 24)}
PAPER_DEVICES = 8
PAPER_RATE = 9.5e12
PAPER_BATCH_TOKENS = 25_000  # source tokens, and as many target tokens (5.1)
TOKENS_PER_SENTENCE = 25  # our guess for the paper's corpus; with 50 the count changes by less than one percent


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """The cost of a training as a row of Table 2.

    Attributes:
        seconds: Duration.
        devices: Number of devices.
        rate: Operations per second that one device sustains.
        counted: Operations counted from the shapes of the matrix products.
    """

    seconds: float
    devices: int
    rate: float
    counted: float

    @property
    def by_the_papers_accounting(self) -> float:
        """Operations by Table 2: time x devices x rate."""
        return self.seconds * self.devices * self.rate

    @property
    def utilisation(self) -> float:
        """Share of these operations that were counted."""
        return self.counted / self.by_the_papers_accounting


def paper_cost(name: str, config: PreTrainedConfig) -> RowCost:
    """The cost of the paper's "base" or "big" training; the count assumes full batches."""
    steps, hours = PAPER_TRAININGS[name]
    length = TOKENS_PER_SENTENCE
    counted = steps * training_flops(config, PAPER_BATCH_TOKENS // length, length, length)
    return RowCost(seconds=hours * 3600, devices=PAPER_DEVICES, rate=PAPER_RATE, counted=counted)
