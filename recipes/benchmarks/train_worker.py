"""A process that trains one system for `train.py`, with the checkout of the package in PYTHONPATH, if any.

It trains one step, and then for the number of seconds in each line of standard input. After each turn it writes a
`Turn` as a line of JSON. It uses only names of the package that all releases have.
"""

import json
import math
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from datasets import Dataset, load_from_disk
from torch import nn
from torch.nn import functional as F
from transformers import (
    DataCollatorForSeq2Seq,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from vaswani_transformer import (
    NoamSchedule,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniTokenizer,
    VaswaniTrainer,
    VaswaniTrainingArguments,
)


WARMUP = 4000


@dataclass(frozen=True)
class Work:
    """The task of a worker.

    Attributes:
        system: One of `SYSTEMS`.
        data: Directory of the encoded corpus, a saved dataset, and of its tokenizer.
        sizes: Sizes of the model, arguments of `VaswaniConfig`.
        tokens: Source and target tokens of a batch.
        bf16: Whether to compute in bfloat16 where PyTorch's autocast does.
        use_cpu: Whether to ignore accelerators.
    """

    system: str
    data: str
    sizes: dict[str, int]
    tokens: int
    bf16: bool
    use_cpu: bool

    def corpus(self) -> Dataset:
        return load_from_disk(Path(self.data, "corpus"))

    def tokenizer(self) -> VaswaniTokenizer:
        return VaswaniTokenizer.from_pretrained(Path(self.data, "tokenizer"), trust_remote_code=False)

    def config(self) -> VaswaniConfig:
        return VaswaniConfig.from_variant("base", **self.sizes)

    def options(self, folder: str) -> dict[str, Any]:
        """Arguments of both trainers: the paper's optimizer, and a log every 50 steps."""
        return {
            "output_dir": folder,
            "max_steps": 10**6,  # standard input ends the training
            "adam_beta2": 0.98,
            "adam_epsilon": 1e-9,
            "max_grad_norm": 0.0,
            "bf16": self.bf16,
            "use_cpu": self.use_cpu,
            "save_strategy": "no",
            "logging_steps": 50,
            "disable_tqdm": True,
            "report_to": "none",
        }


@dataclass
class Turn:
    """The training in a turn.

    Attributes:
        seconds: Its duration.
        tokens: Source and target tokens without padding.
        target_tokens: Target tokens without padding.
        shapes: Sentences, source length and target length of each batch, padding included.
        peak_bytes: Peak memory since the start, in excess of the process without a model.
    """

    seconds: float = 0.0
    tokens: int = 0
    target_tokens: int = 0
    shapes: list[tuple[int, int, int]] = field(default_factory=list)
    peak_bytes: int = 0


def resident_bytes(name: str) -> int:
    """Resident memory of this process on Linux: "VmRSS" now, "VmHWM" at its highest."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


class Turns(TrainerCallback):
    """Counts the trained batches, and waits at the end of each turn for the next one."""

    def __init__(self, results: TextIO) -> None:
        self._results, self._turn = results, Turn()
        self._limit, self._began = 0.0, time.perf_counter()  # the first turn is one step
        self._collated: deque[tuple[int, int, tuple[int, int, int]]] = deque()  # trainers collate ahead
        self._before = resident_bytes("VmRSS")

    def counted(self, collate: Callable[[list], Any]) -> Callable[[list], Any]:
        """Wrap a collator, so that its batches are counted at the end of their step."""

        def collate_and_count(rows: list) -> Any:
            source, target = (sum(len(row[name]) for row in rows) for name in ("input_ids", "labels"))
            batch = collate(rows)
            shape = (*batch["input_ids"].shape, batch["labels"].shape[1])
            self._collated.append((source, target, shape))
            return batch

        return collate_and_count

    def on_step_end(self, *_: Any, **__: Any) -> None:
        source, target, shape = self._collated.popleft()
        self._turn.tokens += source + target
        self._turn.target_tokens += target
        self._turn.shapes.append(shape)
        if time.perf_counter() - self._began < self._limit:
            return
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self._turn.seconds = time.perf_counter() - self._began
        self._turn.peak_bytes = torch.cuda.max_memory_allocated() or resident_bytes("VmHWM") - self._before
        print(json.dumps(asdict(self._turn)), file=self._results, flush=True)
        if not (line := sys.stdin.readline()):
            raise SystemExit
        self._turn, self._limit, self._began = Turn(), float(line), time.perf_counter()


def train_ours(work: Work, turns: Turns, folder: str, **options: Any) -> None:
    options |= work.options(folder)
    arguments = VaswaniTrainingArguments(**options, source_tokens=work.tokens, target_tokens=work.tokens)
    trainer: Any = VaswaniTrainer(
        VaswaniForConditionalGeneration(work.config()),
        arguments,
        train_dataset=work.corpus(),
        processing_class=work.tokenizer(),
        callbacks=[NoamSchedule(WARMUP), turns],
    )
    loader = trainer.get_train_dataloader()  # which may pad what the collator returns
    loader.base_dataloader.collate_fn = turns.counted(loader.base_dataloader.collate_fn)
    trainer.get_train_dataloader = lambda: loader
    trainer.train()


def train_marian(work: Work, turns: Turns, folder: str) -> None:
    """MarianMT as its users train it: a fixed number of sentences of similar length in a batch."""
    from vaswani_transformer.engines.marian import marian_config

    config, corpus = marian_config(work.config(), positions=1024), work.corpus()
    config.init_std = config.d_model**-0.5  # for embeddings of our scale; the default is for other models
    model = MarianMTModel(config)
    sentences = work.tokens * len(corpus) // sum(corpus["target_length"][:])
    arguments = Seq2SeqTrainingArguments(
        **work.options(folder),
        per_device_train_batch_size=sentences,
        train_sampling_strategy="group_by_length",
        label_smoothing_factor=0.1,
        lr_scheduler_type="inverse_sqrt",
        learning_rate=(config.d_model * WARMUP) ** -0.5,
        warmup_steps=WARMUP,
    )
    Seq2SeqTrainer(
        model,
        arguments,
        train_dataset=corpus.select_columns(["input_ids", "labels"]),
        data_collator=turns.counted(DataCollatorForSeq2Seq(work.tokenizer(), model)),
        callbacks=[turns],
    ).train()


class PlainTransformer(nn.Module):
    """`torch.nn.Transformer` between embeddings and logits that share one matrix (3.4), with sinusoids (3.5)."""

    positions: torch.Tensor

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        width = sizes["d_model"]
        self.embedding = nn.Embedding(sizes["vocab_size"], width, padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.transformer = nn.Transformer(
            width,
            sizes["num_heads"],
            sizes["encoder_layers"],
            sizes["decoder_layers"],
            sizes["d_ff"],
            batch_first=True,
        )
        rates = torch.exp(-math.log(10_000) * torch.arange(0, width, 2) / width)
        angles = torch.arange(1024).unsqueeze(-1) * rates  # [positions, d_model / 2]
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), -1).flatten(-2))
        self.dropout = nn.Dropout(0.1)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.shape[1]])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Logits `[batch, target, vocabulary]` for `source` `[batch, source]` and `target` `[batch, target]`."""
        length, padding = target.shape[1], source.eq(0)
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        hidden_states = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(hidden_states, self.embedding.weight)


def train_plain(work: Work, turns: Turns, folder: str) -> None:
    """A plain PyTorch loop on batches of similar length within the token budget."""
    from vaswani_transformer.data.batching import TokenBudgetBatchSampler

    device = torch.device("cpu") if work.use_cpu else torch.accelerator.current_accelerator()
    corpus = work.corpus()
    lengths = corpus["source_length"][:], corpus["target_length"][:]
    loader = torch.utils.data.DataLoader(
        corpus.select_columns(["input_ids", "labels"]),
        batch_sampler=TokenBudgetBatchSampler(*lengths, work.tokens, work.tokens),
        collate_fn=turns.counted(DataCollatorForSeq2Seq(work.tokenizer())),
    )
    model = PlainTransformer(work.sizes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    while True:
        for batch in loader:
            source, labels = batch["input_ids"].to(device), batch["labels"].to(device)
            target = F.pad(labels[:, :-1], (1, 0)).clamp(min=0)  # the start token is padding, 0
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=work.bf16):
                logits = model(source, target)
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            turns.on_step_end()


SYSTEMS: dict[str, Callable[[Work, Turns, str], None]] = {
    "ours": train_ours,
    "ours, compiled": partial(train_ours, torch_compile=True),
    "MarianMTModel in Seq2SeqTrainer": train_marian,
    "torch.nn.Transformer": train_plain,
}


if __name__ == "__main__":
    with redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:  # trainers print their logs
        work = Work(**json.loads(sys.argv[1]))
        SYSTEMS[work.system](work, Turns(sys.__stdout__), folder)
