"""Options of a training: the paper's optimizer (5.3), a batch size in tokens (5.1), elastic training.

They are apart from `VaswaniTrainingArguments`, so that they are parsed without torch.
"""

from dataclasses import dataclass

from ..options.arguments import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Interval, option


@dataclass
class TrainingOptions:
    """The options that `VaswaniTrainingArguments` adds to transformers' arguments, or has another default of."""

    source_tokens: int = option(
        25000,
        "Source tokens of a global batch, over all processes and accumulation steps.",
        COUNT,
        decides="weights",
        paper=25000,
    )
    target_tokens: int = option(
        25000,
        "Target tokens of a global batch, over all processes and accumulation steps.",
        COUNT,
        decides="weights",
        paper=25000,
    )
    batch_window: int = option(
        4,
        "Number of batches among which sentences of similar length are exchanged in each epoch. More mix better; fewer "
        "pad less.",
        COUNT,
        decides="weights",
    )
    adam_beta1: float = option(0.9, "Adam's beta1 (5.3).", SHARE, decides="weights", paper=0.9)
    adam_beta2: float = option(0.98, "Adam's beta2 (5.3).", SHARE, decides="weights", paper=0.98)
    adam_epsilon: float = option(1e-9, "Adam's epsilon (5.3).", POSITIVE, decides="weights", paper=1e-9)
    muon: bool = option(
        False,
        "Optimize the matrices of the layers with Muon (Jordan et al. 2024), and the rest with Adam. Short "
        "trainings learn more with it.",
        decides="weights",
        paper=False,
    )
    ddp_find_unused_parameters: bool | None = option(
        False,
        "Look for parameters without a gradient; not needed, because every step uses every parameter.",
        decides=None,
        is_shown=False,
    )
    max_grad_norm: float = option(
        0.0, "Maximum gradient norm; 0 disables clipping.", NOT_NEGATIVE, decides="weights", paper=0.0
    )
    logging_nan_inf_filter: bool = option(
        False,
        "Log another value for a loss that is not finite; training ends at the first one anyway.",
        decides=None,
        is_shown=False,
    )
    virtual_ranks: int | None = option(
        None,
        "Elastic training: divide every global batch into this number of virtual ranks. The final weights are then the "
        "same, bit for bit, on any number of processes up to virtual_ranks, and after restarts with other numbers, "
        "given the same versions, precision, type of processor and virtual_rank_threads (on GPUs also "
        "full_determinism).",
        COUNT,
        decides="weights",
    )
    virtual_rank_threads: int = option(
        1,
        "CPU threads of each process in elastic training; the final bits depend on it.",
        Interval(minimum=1, maximum=1024),
        decides="weights",
    )
