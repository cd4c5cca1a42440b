# %% [markdown]
r"""
"Attention Is All You Need", section by section, in code that runs
===================================================================

This notebook goes through [the paper](https://arxiv.org/abs/1706.03762) in its order, with its headings. Read it with
the paper in the other hand. It is for readers who know Python and linear algebra, but not attention.
Some lines of the code shown are about things of later sections, such as masks (3.2.3) or dropout (5.4), or about
speed; a first reading can pass over them.

- A section says in a few sentences what the paper does, shows **the code of this package** that does it, runs that
  code on something small, and draws what one should see. Nothing is implemented a second time here.
- Numbers in the text are the paper's. All other numbers are set or printed by the cell below the text.
- **Open** marks what the paper does not say. There stands what the authors' own code did, as published in June 2017,
  and what this package does.
- **Exercises** ask a question. Think, and then unfold the answer. The next cell, whose code and result are folded too,
  computes and checks it.

Three models learn while you read: one copies symbols and one translates English into German (section 5), and one
parses (6.3). All cells together take less than six minutes on two processor cores. The last one prints the processor
time.
The first cell imports, and defines how this page shows code, tables and pictures: skip it. (Jupyter and Colab fold it,
GitHub does not.) `make notebook` opens this page, and `make notebook-outputs` runs it anew from its source,
`recipes/the_paper_in_code.py`.
"""

# %%
# @title Imports, and how this page shows code, tables and pictures
import ast
import dataclasses
import inspect
import io
import json
import math
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import torch
import transformers
from datasets import Dataset
from IPython.display import Image, Markdown, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nltk import Tree
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoTokenizer,
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import vaswani_transformer
from vaswani_transformer import (
    PAPER_VARIANTS,
    LabelSmoothedLoss,
    NoamSchedule,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniForConstituencyParsing,
    VaswaniParsingConfig,
    VaswaniTokenizer,
    VaswaniTrainer,
    VaswaniTrainingArguments,
    average_checkpoints,
    noam_learning_rate,
)
from vaswani_transformer.data.batching import plan_batches
from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.translation import translate_corpus, translate_with_scores
from vaswani_transformer.evaluation.multi_bleu import multi_bleu, paper_tokenizer, split_compounds
from vaswani_transformer.evaluation.perplexity import perplexity
from vaswani_transformer.evaluation.scores import score_translations
from vaswani_transformer.experiments.numbers import (
    PAPER_BATCH_TOKENS,
    PAPER_DEVICES,
    PAPER_RATE,
    PAPER_SCORES,
    PAPER_TRAININGS,
    paper_cost,
)
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.model import modeling_vaswani
from vaswani_transformer.model.beam_search_vaswani import BeamSearch, length_penalty
from vaswani_transformer.model.modeling_vaswani import (
    VaswaniAttention,
    VaswaniDecoder,
    VaswaniDecoderLayer,
    VaswaniEmbedding,
    VaswaniEncoder,
    VaswaniEncoderLayer,
    VaswaniFeedForward,
    VaswaniModel,
    VaswaniPreTrainedModel,
    VaswaniResidual,
    eager_attention_forward,
    restricted_attention_forward,
    sinusoidal_positions,
)
from vaswani_transformer.parsing.model_card import PAPER_PARSERS
from vaswani_transformer.parsing.scoring import parse_corpus, score_parser
from vaswani_transformer.parsing.treebank import TreebankOptions, prepare_treebank, read_treebank
from vaswani_transformer.parsing.trees import sequence_of_tree, tree_in_one_line
from vaswani_transformer.runs.plots import plot_learning_curve
from vaswani_transformer.runs.validation_bleu import ValidationBleu
from vaswani_transformer.training.loss import SmoothedCrossEntropy
from vaswani_transformer.visualization.attention import AttentionWeights, merge_words, read_attention
from vaswani_transformer.visualization.explorer import explore
from vaswani_transformer.visualization.figures import attention_entropy, draw_attention, positions_view
from vaswani_transformer.visualization.search_trace import SearchTrace, trace_search


ROOT = Path(vaswani_transformer.__file__).parents[1]
SCRATCH = tempfile.TemporaryDirectory()  # deleted when the kernel ends


def show(*objects: Any) -> None:
    """Show the package's own code of some functions or classes, and the file it stands in."""
    for each in objects:
        file = Path(inspect.getsourcefile(inspect.unwrap(each))).relative_to(ROOT)
        code = textwrap.dedent(inspect.getsource(each))
        display(Markdown(f"`{each.__qualname__}` in `{file}`:\n\n```python\n{code}```"))


def table(headings: Sequence[str], *rows: Sequence[object], folded: bool = False) -> None:
    text = markdown_table([list(headings), *([str(cell) for cell in row] for row in rows)])
    display(Markdown(f"<details><summary>Result</summary>\n\n{text}\n\n</details>" if folded else text))


def fit(modules: Sequence[nn.Module], loss_of_batch: Callable, steps: int, rate: float, warmup: int = 1) -> list[float]:
    """Lower a loss by Adam, with the paper's betas and epsilon; return the loss of each step."""
    weights = [weight for module in modules for weight in module.parameters()]
    optimizer = torch.optim.Adam(weights, betas=(0.9, 0.98), eps=1e-9, fused=True)
    losses = []
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = rate * min(1, step / warmup)
        loss = loss_of_batch()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def new_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=SCRATCH.name))


def draw(figure: Figure) -> None:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=90)
    display(Image(content.getvalue()))


def print_shapes(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        print(f"{name:<42}{list(tensor.shape)}")


def heatmap(
    axes: Axes,
    matrix: torch.Tensor | np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    with_numbers: bool = False,
) -> None:
    """Draw a matrix `[rows, columns]` of numbers from 0 (white) to 1 (dark)."""
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(title, fontsize=10)
    for (row, column), value in np.ndenumerate(np.asarray(matrix) if with_numbers else []):
        color = "white" if value > 0.5 else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)


torch.manual_seed(0)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
datasets.disable_progress_bars()

# %% [markdown]
r"""
## 1 Introduction

A recurrent network reads a sentence word by word. Its state after word $t$ is computed from its state after word
$t-1$, so the computation for one sentence cannot run in parallel, and what the first word said must survive every
step to reach the last one. The paper's proposal: drop recurrence, and let every position look at every other position
directly. This look is **attention**, and the model made of it is the **Transformer**.

The package has one place for each section of the paper. The first lines of its files are its table of contents:
"""

# %%
for file in sorted((ROOT / "vaswani_transformer").rglob("*.py")):
    first_line = file.read_text(encoding="utf-8").partition("\n")[0].strip('"')
    if first_line.lower().startswith("section"):
        print(f"{file.relative_to(ROOT / 'vaswani_transformer')!s:<36}{first_line}")

# %% [markdown]
r"""
## 2 Background

Earlier models replaced recurrence by convolutions (ByteNet, ConvS2S), which compute all positions at once. In them the
number of steps between two words grows with their distance: linearly in ConvS2S, logarithmically in ByteNet. In the
Transformer it is constant (section 4). **Self-attention** is attention between the positions of one sequence. It had
been used before, mostly beside recurrence. To the authors' knowledge, theirs is the first model from sequence to
sequence that rests on it alone.

The task is translation: a sequence goes in, another one comes out, and neither the words nor their number or order
agree. The package has a small corpus for it, English and German sentences that a grammar writes. Look at where the
German verbs stand:
"""

# %%
table(["English", "German"], *phrasebook("train")[:6])
print(f"{len(phrasebook('train')):,} pairs to learn from, and {len(phrasebook('test'))} others as a test")

# %% [markdown]
r"""
## 3 Model Architecture

A text is a row of **sub-words**: whole words, or parts of words (5.1). The **vocabulary** is the list of all of them,
and a **token** is one sub-word of a text, stored as its number in the vocabulary. Each number stands for a vector of
$d_{model} = 512$ numbers, its **embedding** (3.4).

The **encoder** reads the source $(x_1, \dots, x_n)$ and turns it into as many vectors $(z_1, \dots, z_n)$. The
**decoder** writes the translation one token at a time. At each step it sees $z$, and the tokens that it has written so
far: it is **auto-regressive**. Both are stacks of identical layers. A layer takes and returns a vector of $d_{model}$
numbers for each position of each sentence. Several sentences are computed at once, as a **batch**, so that the shape
is `[batch, length, d_model]`.

The numbers in the model's matrices are its **parameters**. They begin at random. **Training** changes them in many
small **steps**. In each step a **loss** measures how wrong the model's predictions are for a batch of known
translations, and each parameter moves a little against its derivative, the **gradient** (section 5).

In training all of the translation is known. The decoder then computes all positions at once. Its input is the
translation shifted right by one position, so that the position that predicts token $t$ has seen only those before it:
"""

# %%
show(VaswaniForConditionalGeneration.prepare_decoder_input_ids_from_labels)

# %% [markdown]
r"""
**Open: what the decoder starts from.** Other models start from a token of their own, with a learned embedding. The
authors' code starts from a vector of zeros, to which only the position is added. So does this package: the start has
number 0, whose embedding is zero. (The same number fills up short sentences of a batch, as **padding**. There the
labels are -100, which the last line replaces.) Sentences of both languages end in the token EOS ("end of sentence"),
number 1.

### Figure 1: The Transformer - model architecture

This is Figure 1 as a tree of modules, each with the shape that comes out of it, and the number of its parameters. The
model is the paper's base model, and its input two sentences of 7 tokens, whose translations have 6. `lm_head` is the
figure's last "Linear"; its softmax is left to the loss and to the search. `activation` stands between `fc1` and `fc2`.
"""

# %%
base = VaswaniForConditionalGeneration(VaswaniConfig.from_variant("base")).eval()
source, target = torch.randint(2, 37_000, (2, 7)), torch.randint(2, 37_000, (2, 6))  # [batch, length]
shapes: dict[str, list[int]] = {}


def note_shape(name: str) -> Callable[..., None]:
    def note(module: nn.Module, inputs: tuple, output: Any) -> None:
        first = output if isinstance(output, torch.Tensor) else output[0]
        shapes[name] = list(first.shape)

    return note


handles = [module.register_forward_hook(note_shape(name)) for name, module in base.named_modules() if name]
base(source, decoder_input_ids=target)
for handle in handles:
    handle.remove()

for name, module in base.named_modules():
    if name in shapes and ".layers." not in name.replace(".layers.0", ""):
        indent = "  " * name.count(".")
        like = f"   (the first of {len(base.model.encoder.layers)} alike)" if name.endswith("layers.0") else ""
        label = f"{indent}{name.rpartition('.')[2]}: {type(module).__name__}"
        print(f"{label:<58}{shapes[name]!s:<18}{sum(p.numel() for p in module.parameters()):>11,}{like}")
print(f"{base.num_parameters():,} parameters: the matrix of embeddings stands here three times, and counts once (3.4)")

# %% [markdown]
r"""
### 3.1 Encoder and Decoder Stacks

Each stack has $N = 6$ layers. A layer of the encoder has two **sub-layers**, attention and a feed-forward network. A
layer of the decoder has a third between them, which attends to the encoder's output. Around each sub-layer stands the
same frame, a residual connection and a normalisation:

$$\mathrm{LayerNorm}(x + \mathrm{Dropout}(\mathrm{Sublayer}(x)))$$

The residual connection is the "$x +$": it lets a layer change its input a little instead of replacing it. LayerNorm
gives each position mean 0 and variance 1 over its $d_{model}$ numbers, and then scales and shifts each of them by
parameters, which begin as 1 and 0. Dropout is the subject of section 5.4.
"""

# %%
show(VaswaniResidual, VaswaniEncoderLayer, VaswaniDecoderLayer)

# %% [markdown]
r"""
Whatever the size of the numbers that come in, each position leaves an untrained frame with mean 0 and variance 1:
"""

# %%
residual = VaswaniResidual(VaswaniConfig()).eval()
states = 5 + 3 * torch.randn(1, 4, 512)  # [batch, length, d_model]
after = residual(states, torch.randn(1, 4, 512))
columns = [statistic for each in (states[0], after[0]) for statistic in (each.mean(-1), each.var(-1, correction=0))]
table(
    ["position", "mean before", "variance before", "mean after", "variance after"],
    *[[number, *map("{:z.3f}".format, row)] for number, row in enumerate(torch.stack(columns, 1).tolist(), start=1)],
)

# %% [markdown]
r"""
**Open: the order.** The formula of the paper normalises after the addition (*post-norm*), and so does this package.
The authors' later code, and most models since, normalise the input of each sub-layer instead (*pre-norm*), and then
need one more LayerNorm at the end of each stack. The exercise of section 5.3 shows what is gained.

**Open: epsilon.** LayerNorm divides by $\sqrt{variance + \epsilon}$. The paper does not give $\epsilon$. The authors'
code has $10^{-6}$, and so has this package. PyTorch's default is $10^{-5}$.

**Exercise.** Leave out the "$x +$". What becomes of the vectors of twenty different words in the six layers of an
untrained encoder?

<details><summary>Answer</summary>

An untrained attention gives every position nearly the same average of all positions (3.2). Without a residual
connection nothing else goes on, so that all positions have nearly the same vector after one layer: which word stood
where is lost. With it, each vector keeps a part of its word. The table has the mean cosine of the angle between the
vectors of two positions: 1 means that they point the same way. The exercise of section 5.3 trains such a stack.
</details>
"""

# %%
# @title Answer, computed


def only_the_sublayer(self: VaswaniResidual, x: torch.Tensor, sublayer_output: torch.Tensor) -> torch.Tensor:
    return self.norm(sublayer_output)


twenty_words = torch.randint(2, 37_000, (1, 20))
likeness = {}
for name, forward in (("with", VaswaniResidual.forward), ("without", only_the_sublayer)):
    with mock.patch.object(VaswaniResidual, "forward", forward), torch.no_grad():
        layers = base.model.encoder(twenty_words, output_hidden_states=True).hidden_states  # the embeddings are first
    directions = [F.normalize(states[0], dim=-1) for states in layers]  # [words, d_model] each
    likeness[name] = [(each @ each.T)[~torch.eye(20, dtype=torch.bool)].mean().item() for each in directions]
table(
    ["residual", "embeddings", *(f"layer {number}" for number in range(1, 7))],
    *[[name, *map("{:.2f}".format, cosines)] for name, cosines in likeness.items()],
    folded=True,
)
assert likeness["without"][1] > 0.9 > likeness["with"][-1]

# %% [markdown]
r"""
### 3.2 Attention

Attention is a soft lookup. A **query** asks, each **key** says what is to be found at its position, and each
**value** is what one gets there. All three are vectors, and every word has one of each. The answer to a query is a
weighted average of the values. A value has a larger **weight**, the better its key fits the query.

In a model, queries, keys and values are learned. Here are six words with queries and keys made by hand, as a grammar
might choose them:
"""

# %%
words = ["the", "old", "cat", "chased", "a", "mouse"]
kinds = ["article", "adjective", "noun", "verb"]  # a dimension of keys and queries each
kind_of = [0, 1, 2, 3, 0, 2]  # of each word
asks_for = [2, 2, 3, 2, 2, 3]  # articles and adjectives look for nouns, nouns for verbs, verbs for nouns
keys = 6 * torch.eye(4)[kind_of]  # [words, d_k]; the larger the factor, the clearer the difference of the weights
queries = torch.eye(4)[asks_for]  # [words, d_k]
values = torch.eye(6)  # [words, d_v]: a dimension for each word, so that an average can be read off
table(
    ["word", "its key says", "its query asks for"],
    *zip(words, [kinds[k] for k in kind_of], [kinds[k] for k in asks_for], strict=True),
)

# %% [markdown]
r"""
#### 3.2.1 Scaled Dot-Product Attention

The dot product of a query and a key is their **score**: it says how well they fit. (Additive attention, the usual
alternative, has a small network in its place; a dot product is faster.) Softmax makes weights of the scores, which are
positive and sum to 1: $\mathrm{softmax}(x)_i = e^{x_i} / \sum_j e^{x_j}$. Queries, keys and values are the rows of
matrices $Q$, $K$ and $V$, so that all are computed at once. This is equation 1, with $d_k$ the width of queries and
keys, and $d_v$ that of values:

$$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V \qquad (1)$$
"""

# %%
show(eager_attention_forward)

# %% [markdown]
r"""
Here it runs on the six words, as one sentence (`batch`) with one attention (`heads`, 3.2.2). A row of the picture is a
query, a column is a key: "chased" divides its attention between the two nouns, and both nouns look at the verb. Nothing
in equation 1 knows the order of the words: "the" and "a" ask the same question, and get the same answer. Section 3.5 is
about that.
"""

# %%
one_q, one_k, one_v = (states[None, None] for states in (queries, keys, values))  # [batch, heads, words, width] each
output, weights = eager_attention_forward(nn.Module().eval(), one_q, one_k, one_v, attention_mask=None, scaling=4**-0.5)
print_shapes({"Q": one_q, "K": one_k, "V": one_v, "weights": weights, "output": output})
figure = Figure(figsize=(4.2, 3.9), layout="constrained")
axes = figure.subplots()
heatmap(axes, weights[0, 0], words, words, "weights of the six words", with_numbers=True)
axes.set(xlabel="keys", ylabel="queries")
draw(figure)

# %% [markdown]
r"""
The same for "chased" alone, with loops: three lines of arithmetic are all that attention is. Each value here marks its
own word, so that the average shows the weights.
"""

# %%
scores = [sum(q * k for q, k in zip(queries[3].tolist(), key, strict=True)) / math.sqrt(4) for key in keys.tolist()]
by_hand = [math.exp(score) / sum(math.exp(other) for other in scores) for score in scores]
average = [sum(weight * value for weight, value in zip(by_hand, column, strict=True)) for column in values.T.tolist()]
assert torch.allclose(output[0, 3, 0], torch.tensor(average))
print(" ".join(f"{word}: {value:.2f} " for word, value in zip(words, average, strict=True)))

# %% [markdown]
r"""
Why divide by $\sqrt{d_k}$? If the components of $q$ and $k$ are independent, with mean 0 and variance 1, then
$q \cdot k$ has variance $d_k$ (the paper's footnote 4). The division makes the spread of the scores (their standard
deviation) independent of the width:
"""

# %%
rows = []
for width in (1, 4, 16, 64, 256):
    products = (torch.randn(20_000, width) * torch.randn(20_000, width)).sum(-1)
    rows.append(
        [width, f"{products.std():.2f}", f"{math.sqrt(width):.2f}", f"{(products / math.sqrt(width)).std():.2f}"]
    )
table(["$d_k$", "spread of $q \\cdot k$", "$\\sqrt{d_k}$", "spread after division"], *rows)

# %% [markdown]
r"""
**Exercise.** Remove the scaling. With $d_k = 512$, as for the single head of Table 3 (A), what becomes of the weights
that a query gives to ten keys? And what becomes of the gradient? The derivative of a weight $w$ with respect to its own
score is $w(1-w)$.

<details><summary>Answer</summary>

Softmax saturates: nearly all of the weight goes to one key, whichever happens to have the largest product. The
derivatives are much smaller, so that training changes this more slowly.
</details>
"""

# %%
# @title Answer, computed
random_queries, random_keys = torch.randn(1, 1, 200, 512), torch.randn(1, 1, 10, 512)
found = {}
for name, scaling in (("divided by the root of d_k", 512**-0.5), ("not divided", 1.0)):
    _, weights = eager_attention_forward(nn.Module(), random_queries, random_keys, random_keys, None, scaling)
    found[name] = weights.max(-1).values.mean().item(), (weights * (1 - weights)).mean().item()
table(
    ["scores", "largest of ten weights", "gradient"],
    *[[name, f"{most:.2f}", f"{slope:.4f}"] for name, (most, slope) in found.items()],
    folded=True,
)
assert found["not divided"][0] > 0.9 > 0.5 > found["divided by the root of d_k"][0]
assert found["not divided"][1] < found["divided by the root of d_k"][1] / 3

# %% [markdown]
r"""
#### 3.2.2 Multi-Head Attention

One attention gives each position one average. A verb that needs to know two things, its subject and its object, would
get their mixture. The paper therefore has $h = 8$ **heads**. Each makes its queries, keys and values from the vectors
of the layer, by matrices of its own (`[d_model, d_k]`, and `[d_model, d_v]` for values), and attends by itself. The
outputs of the heads stand side by side, and one more matrix mixes them:

$$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_h)\,W^O,\quad
\mathrm{head}_i = \mathrm{Attention}(QW_i^Q, KW_i^K, VW_i^V)$$

In code, the eight matrices $W_i^Q$ stand side by side in one matrix `q_proj`, and a product with it gives all heads
at once. (`_keys_and_values` does the same with `k_proj` and `v_proj`. While a translation is written, it also keeps the
keys and values of the steps before, in a **cache**.)
"""

# %%
show(VaswaniAttention.__init__, VaswaniAttention.forward, VaswaniAttention._split_heads)

# %% [markdown]
r"""
### Figure 2: Scaled Dot-Product Attention and Multi-Head Attention

Both parts of Figure 2 as shapes. The right part is the module, here done by hand: divide into heads, attend, join. The
left part is equation 1 inside of it.
"""

# %%
sizes = VaswaniConfig()
attention = VaswaniAttention(sizes).eval()
six_words = torch.randn(1, 6, sizes.d_model) + sinusoidal_positions(torch.arange(6), sizes.d_model)
with torch.no_grad():
    seen_q, seen_k, seen_v = (
        projection(six_words).unflatten(-1, (8, 64)).transpose(1, 2)  # [batch, heads, words, width]
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    of_heads, eight_weights = eager_attention_forward(attention, seen_q, seen_k, seen_v, None, scaling=64**-0.5)
    mixed = attention.out_proj(of_heads.flatten(2))
    assert torch.allclose(mixed, attention(six_words, implementation="eager")[0], atol=1e-6)  # the same as the module
print_shapes(
    {
        "x": six_words,
        "Q: x through q_proj, divided into heads": seen_q,
        "K: x through k_proj, divided into heads": seen_k,
        "V: x through v_proj, divided into heads": seen_v,
        "softmax(Q K^T / sqrt(d_k)), the weights": eight_weights,
        "heads side by side, through out_proj": mixed,
    }
)

# %% [markdown]
r"""
Eight heads give eight patterns of weights over the same six words (rows are queries). The vectors and matrices are
still random, so that no pattern means anything. Figures 3 to 5 at the end show heads that have learned something.
"""

# %%
figure = Figure(figsize=(9.5, 4.6), layout="constrained")
for number, axes in enumerate(figure.subplots(2, 4).flat):
    heatmap(
        axes,
        eight_weights[0, number],
        words if number % 4 == 0 else [],
        words if number > 3 else [],
        f"head {number + 1}",
    )
draw(figure)

# %% [markdown]
r"""
Eight heads have as many parameters as one, since each has an eighth of the width: $d_k = d_v = d_{model} / h = 64$. The
products cost the same too; only the softmax has eight times as many weights to compute.
"""

# %%
table(
    ["heads", "$d_k$", "parameters of an attention"],
    *[
        [heads, one.d_k, f"{sum(p.numel() for p in VaswaniAttention(one).parameters()):,}"]
        for heads in (1, 4, 8, 16, 32)
        for one in [VaswaniConfig(num_heads=heads)]
    ],
)

# %% [markdown]
r"""
**Open: biases.** The formula has matrices alone. The authors' code of June 2017 added biases to all four projections,
and removed them in November 2017. This package has them (`attention_bias`): with them, the counts of Table 3 come
out, see section 6.2.

**Open: initialisation.** The paper says nothing. The authors' code draws the entries of a matrix uniformly between
$\pm\sqrt{6 / (\mathrm{fan_{in}} + \mathrm{fan_{out}})}$, with the numbers of its inputs and outputs. But it treats
$W^Q$, $W^K$ and $W^V$ of self-attention as one matrix, which has three times the outputs (in encoder-decoder attention
$W^K$ and $W^V$, twice). Therefore the entries are smaller than in three separate matrices:
"""

# %%
show(VaswaniPreTrainedModel._init_weights, VaswaniPreTrainedModel._fan_out)
tiny = VaswaniModel(VaswaniConfig(vocab_size=100, encoder_layers=1, decoder_layers=1))
alone = math.sqrt(6 / (512 + 512))
for name in (
    "encoder.layers.0.self_attn.q_proj",
    "decoder.layers.0.encoder_attn.k_proj",
    "decoder.layers.0.encoder_attn.q_proj",
):
    print(
        f"{name:<42}{tiny.get_submodule(name).weight.abs().max().item() / alone:.3f} of the limit of a matrix by itself"
    )

# %% [markdown]
r"""
**Exercise.** Symbols stand in a row, each one of eight. Each position is to name the two symbols before it. Train one
layer of attention for it, with a linear answer for each of the two, once with one head, once with eight. What can one
head not do?

<details><summary>Answer</summary>

One head has one average for both answers. If both symbols had the same weight in it, one could not tell which came
first. So the head looks at one of the two places, and the symbol at the other is little better than guessed (one in
eight). Eight heads look at the two places separately, and write into different parts of the vector.
</details>
"""

# %%
# @title Answer, computed


def named_before(heads: int) -> list[float]:
    """Train a layer; return the share of positions where it names the symbol two places before, and one before."""
    torch.manual_seed(0)
    layer = VaswaniAttention(VaswaniConfig(d_model=64, num_heads=heads))
    embedding, answers = nn.Embedding(8, 64), nn.Linear(64, 2 * 8)
    is_right: list[torch.Tensor] = []

    def loss_of_batch() -> torch.Tensor:
        symbols = torch.randint(8, (64, 10))
        attended, _ = layer(embedding(symbols) + sinusoidal_positions(torch.arange(10), 64), implementation="eager")
        logits = answers(attended[:, 2:]).unflatten(-1, (2, 8))  # [batch, places from the third, answers, symbols]
        labels = torch.stack((symbols[:, :-2], symbols[:, 1:-1]), dim=-1)  # [batch, places from the third, answers]
        is_right.append(logits.argmax(-1) == labels)
        return F.cross_entropy(logits.flatten(0, 2), labels.flatten())

    fit([embedding, layer, answers], loss_of_batch, steps=250, rate=3e-3)
    return is_right[-1].float().mean((0, 1)).tolist()


named = {heads: named_before(heads) for heads in (1, 8)}
table(
    ["heads", "symbol two before", "symbol before"],
    *[[heads, *map("{:.0%}".format, each)] for heads, each in named.items()],
    folded=True,
)
assert min(named[8]) > 0.95
assert min(named[1]) < 0.5

# %% [markdown]
r"""
#### 3.2.3 Applications of Attention in our Model

The same module serves in three places. They differ in where queries and keys come from, and in what is masked:

- **encoder-decoder attention**: queries from the decoder, keys and values from the encoder's output. Every word of
  the translation sees all of the source.
- **self-attention of the encoder**: all three from the layer before. Every word sees every word.
- **self-attention of the decoder**: the same, but a position must not see those after it, or it would read its
  answer. Their scores are set to $-\infty$ before the softmax, so that their weights are 0. (The code adds the most
  negative number of the data type, which has the same effect.)

Padding is masked everywhere in the same way.

The cell runs a small untrained model. The first picture is its decoder's mask. The others are the weights of one head
in each of the three places. A row is the position that attends, a column the position that it looks at.
"""

# %%
show(VaswaniDecoder.forward)
small = VaswaniConfig(vocab_size=50, d_model=32, d_ff=64, num_heads=2, encoder_layers=2, decoder_layers=2)
small_model = VaswaniForConditionalGeneration(small).eval()
small_model.set_attn_implementation("eager")  # the implementation that returns its weights
masks: list[torch.Tensor] = []
handle = small_model.model.decoder.layers[0].register_forward_pre_hook(lambda _, inputs: masks.append(inputs[1]))
pair = {"input_ids": torch.randint(2, 50, (1, 8)), "decoder_input_ids": torch.randint(2, 50, (1, 6))}
with torch.no_grad():
    seen = small_model(**pair, output_attentions=True)
    handle.remove()
    changed = small_model(
        **{**pair, "decoder_input_ids": torch.cat((pair["decoder_input_ids"][:, :-1], torch.tensor([[9]])), 1)}
    )
print("the decoder's mask, which is added to the scores:", list(masks[0].shape))

figure = Figure(figsize=(10, 3), layout="constrained")
panels = figure.subplots(1, 4)
heatmap(panels[0], masks[0][0, 0].eq(0), [], [], "mask: dark may be seen")
for axes, (name, layers) in zip(
    panels[1:],
    {
        "decoder self": seen.decoder_attentions,
        "encoder self": seen.encoder_attentions,
        "encoder-decoder": seen.cross_attentions,
    }.items(),
    strict=True,
):
    heatmap(axes, layers[0][0, 0], [], [], f"{name} {list(layers[0].shape[2:])}")
draw(figure)

# %% [markdown]
r"""
The proof that the masks work. Another token at the last place of the decoder changes nothing at the places before it,
to the last bit. Padding behind the source changes nothing at all, up to rounding. (**Logits** are the model's numbers
for all sub-words of the vocabulary, before the softmax.)
"""

# %%
differences = (seen.logits - changed.logits).abs().amax(-1)[0]  # [target]
print("largest change of the logits at each place:", [f"{value:.2g}" for value in differences.tolist()])
assert differences[:-1].eq(0).all()
assert differences[-1] > 0

padded = {**pair, "input_ids": F.pad(pair["input_ids"], (0, 3))}  # three numbers 0 behind the source
with torch.no_grad():
    padded_logits = small_model(**padded, attention_mask=padded["input_ids"].ne(0).long()).logits
print(f"largest change by padding: {(padded_logits - seen.logits).abs().max():.1g}")
assert torch.allclose(padded_logits, seen.logits, atol=1e-5)

# %% [markdown]
r"""
**Exercise.** Train a small model to copy rows of eight symbols, once with the decoder's mask and once without. Which
has the lower loss? Which copies, when it writes by itself?

<details><summary>Answer</summary>

Both have a loss near 0. But without the mask each position finds its answer in the decoder's input, one place to its
right, and learns to look there rather than at the source. When the model writes by itself, nothing stands there yet: it
writes nonsense. A loss in training that is too good to be true is the usual sign of a wrong mask.
</details>
"""

# %%
# @title Answer, computed


def without_mask(module: nn.Module, q: Any, k: Any, v: Any, mask: Any, scaling: float, **kwargs: Any) -> tuple:
    return eager_attention_forward(module, q, k, v, None, scaling)


def trained_to_copy(attend: Callable[..., tuple]) -> tuple[float, float]:
    """Train with an attention function; return the last loss, and the share of symbols that the model writes right."""
    torch.manual_seed(0)
    copier = VaswaniForConditionalGeneration(
        VaswaniConfig(vocab_size=12, d_model=64, d_ff=128, num_heads=4, encoder_layers=1, decoder_layers=1, dropout=0.0)
    )
    copier.set_attn_implementation("eager")

    def batch() -> torch.Tensor:
        return F.pad(torch.randint(2, 12, (64, 8)), (0, 1), value=1)  # EOS at the end

    with mock.patch.object(modeling_vaswani, "eager_attention_forward", attend):
        losses = fit([copier], lambda: copier(symbols := batch(), labels=symbols).loss, steps=250, rate=5e-3)
    symbols = batch()
    written = copier.eval().generate(symbols, num_beams=1, max_new_tokens=9)[:, 1:]  # without the start
    written = F.pad(written, (0, 9 - written.shape[1]))
    return losses[-1], (written == symbols)[:, :8].float().mean().item()


copies = {"with the mask": trained_to_copy(eager_attention_forward), "without": trained_to_copy(without_mask)}
table(
    ["trained", "loss", "symbols written right"],
    *[[name, f"{loss:.3f}", f"{share:.0%}"] for name, (loss, share) in copies.items()],
    folded=True,
)
assert max(loss for loss, _ in copies.values()) < 0.2
assert copies["with the mask"][1] > 0.9 > 0.5 > copies["without"][1]

# %% [markdown]
r"""
### 3.3 Position-wise Feed-Forward Networks

Attention moves information between positions. The second sub-layer works on each position by itself, with the same
parameters at all of them. It widens 512 numbers to $d_{ff} = 2048$, sets the negative ones to zero (ReLU), and goes
back to 512:

$$\mathrm{FFN}(x) = \max(0, xW_1 + b_1)W_2 + b_2 \qquad (2)$$
"""

# %%
show(VaswaniFeedForward)
feed_forward = VaswaniFeedForward(VaswaniConfig(), 2048).eval()
x = torch.randn(1, 6, 512)
order = torch.randperm(6)
with torch.no_grad():
    assert torch.allclose(feed_forward(x)[:, order], feed_forward(x[:, order]), atol=1e-6)
    as_convolution = F.conv1d(x.transpose(1, 2), feed_forward.fc1.weight[:, :, None], feed_forward.fc1.bias)
    assert torch.allclose(as_convolution.transpose(1, 2), feed_forward.fc1(x), atol=1e-5)
print("Exchanged positions give exchanged results.")
print("The first product is a convolution of kernel size 1, as the paper says.")
layer = base.model.encoder.layers[0]
share = sum(p.numel() for p in layer.feed_forward.parameters()) / sum(p.numel() for p in layer.parameters())
print(f"It has {share:.0%} of the parameters of a layer of the encoder.")

# %% [markdown]
r"""
### 3.4 Embeddings and Softmax

The embeddings are the rows of a matrix, one for each sub-word of the vocabulary. At the end, the decoder's output is
compared with every row by a dot product, and a softmax makes probabilities of these logits. One matrix serves the
source, the target and this last step.

In the embeddings, the matrix is multiplied by $\sqrt{d_{model}}$. The paper does not say why. The numbers show one
reason. The entries are drawn with a standard deviation of $d_{model}^{-0.5}$, so that rows have a length near 1. That
suits the logits, which then begin near 1 in size too. Without the factor, the position that is added to an embedding
(3.5) would be many times as long a vector. With it, their lengths are of the same order.
"""

# %%
show(VaswaniEmbedding)
matrix = base.model.shared.weight
assert base.lm_head.weight is matrix
assert base.model.encoder.embed_tokens.weight is matrix
assert base.model.decoder.embed_tokens.weight is matrix
embedded = base.model.encoder.embed_tokens(source)
seven = sinusoidal_positions(torch.arange(7), 512)  # positions
print(f"one matrix {list(matrix.shape)}; mean length of its rows {matrix.norm(dim=-1).mean():.2f}")
with torch.no_grad():
    print(f"spread of the untrained model's logits {base(source, decoder_input_ids=target).logits.std():.2f}")
print(f"mean length of an embedding {embedded.norm(dim=-1).mean():.1f}, of a position {seven.norm(dim=-1).mean():.1f}")
print(f"{matrix.numel() / 1e6:.1f} of {base.num_parameters() / 1e6:.1f} million parameters are in this matrix")

# %% [markdown]
r"""
**Open: rows of the matrix.** The paper has "about 37,000" sub-words. The authors' code rounded its matrix up, to
40,960 rows: only with these comes the count of Table 3 out (section 6.2). Here the matrix has as many rows as the
vocabulary has entries.

**Open: padding.** Softmax and embeddings share the row of number 0, which is padding and the decoder's start. So
training changes the row. The authors' code sets the embedding of 0 to zero all the same. So does `VaswaniEmbedding`
above, in its last line.
"""

# %%
start = base.model.decoder.embed_tokens(torch.tensor([[0, 5]]))
for number, vector in zip((0, 5), start[0], strict=True):
    print(f"largest number in the embedding of {number}: {vector.abs().max():.2f}")
del base, layer, matrix, embedded

# %% [markdown]
r"""
### 3.5 Positional Encoding

To attention, a sentence is a set: in 3.2.1 the answer for a word did not depend on where it stood. So the position is
added to the embedding, as a vector of the same width. Each pair of dimensions turns like the hand of a clock. Pair $i$
has the speed $\omega_i = 1 / 10000^{2i/d_{model}}$: the first turns by one radian a position, the last by hardly more
than one in 10,000 positions.

$$PE_{(pos, 2i)} = \sin(pos / 10000^{2i/d_{model}}), \qquad PE_{(pos, 2i+1)} = \cos(pos / 10000^{2i/d_{model}})$$

In the picture, fast pairs are at the left. The slow ones at the right hardly turn in sixty positions: their sines stay
near 0, their cosines near 1.
"""

# %%
show(sinusoidal_positions)
draw(positions_view(d_model=128, length=60).figure)

# %% [markdown]
r"""
The paper chose sinusoids because "for any fixed offset $k$, $PE_{pos+k}$ can be represented as a linear function of
$PE_{pos}$". This linear function is a **rotation**. A pair $(\sin a, \cos a)$, with $a = \omega_i\,pos$, is a point on
a circle, and $k$ positions further it has turned by $k\omega_i$, whatever $a$ was:

$$\begin{pmatrix}\sin(a + k\omega_i)\\ \cos(a + k\omega_i)\end{pmatrix} =
\begin{pmatrix}\cos k\omega_i & \sin k\omega_i\\ -\sin k\omega_i & \cos k\omega_i\end{pmatrix}
\begin{pmatrix}\sin a\\ \cos a\end{pmatrix}$$

The cell makes the matrix of all these rotations for $k = 7$, and moves fifty positions with it at once. Then it draws
three pairs as points, from dark (position 0) to bright (position 59), and two shifts by 7 as arrows. Last, it gives all
positions to one attention as queries and keys, with $W^K = 1$, and $W^Q = 1$ or $W^Q = R$.
"""

# %%
d_model, shift = 64, 7
encoding = sinusoidal_positions(torch.arange(60), d_model, dtype=torch.float64)  # [positions, d_model]
rotation = torch.zeros(d_model, d_model, dtype=torch.float64)
for pair_number in range(d_model // 2):
    angle = shift / 10000 ** (2 * pair_number / d_model)
    block = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    place = slice(2 * pair_number, 2 * pair_number + 2)
    rotation[place, place] = torch.tensor(block)
assert torch.allclose(encoding[:50] @ rotation.T, encoding[shift : 50 + shift])
assert torch.allclose(rotation @ rotation.T, torch.eye(d_model, dtype=torch.float64))
print("PE(pos + 7) = R PE(pos) at all fifty positions, and R is a rotation: R times its transpose is 1.")
scores_of = {"$W^Q = 1$": encoding @ encoding.T, "$W^Q = R$": (encoding @ rotation) @ encoding.T}
for matrix_of_scores in scores_of.values():  # [positions that ask, positions that are asked]
    diagonals = [matrix_of_scores.diagonal(k) for k in range(-50, 51)]
    assert all(torch.allclose(diagonal, diagonal[0]) for diagonal in diagonals)  # they depend on the distance alone
for (name, matrix_of_scores), back in zip(scores_of.items(), (0, shift), strict=True):
    assert matrix_of_scores.argmax(-1)[back:].equal(torch.arange(60 - back))
    print(f"{name.strip('$')}: from place {back} on, each gives its largest score to the one {back} places before.")

figure = Figure(figsize=(9.5, 3), layout="constrained")
*circles, last = figure.subplots(1, 4)
for axes, number in zip(circles, (0, 4, 8), strict=True):
    sine, cosine = encoding[:, 2 * number], encoding[:, 2 * number + 1]
    axes.scatter(cosine, sine, c=range(60), cmap="viridis", s=12)
    for at in (10, 37):
        axes.annotate(
            "",
            (cosine[at + shift], sine[at + shift]),
            (cosine[at], sine[at]),
            arrowprops={"arrowstyle": "->", "color": "red"},
        )
    axes.set_aspect("equal")
    axes.set_title(f"dimensions {2 * number} and {2 * number + 1}", fontsize=9)
for name, matrix_of_scores in scores_of.items():
    last.plot(range(-29, 31), matrix_of_scores[29], label=name)
last.set_title("score of 29 and 29 + k, over k", fontsize=9)
last.legend(fontsize=7)
draw(figure)

# %% [markdown]
r"""
In each circle both arrows span the same angle. The last picture is a consequence. The dot product of two encodings by
itself depends on their distance alone and is largest at distance 0, but it is the same for seven places before and
seven after. A head that is to tell them apart needs the rotation: if it is in $W^Q$, a query is turned back by
$k\omega_i$ in each pair, and fits best the key $k$ places before it, wherever it stands. So a head can learn to look
"seven words back" anywhere. (Its 64 dimensions have room for 32 of the 256 pairs of the base model.)

**Open: the layout.** The formula alternates sines and cosines. The authors' code has all sines first, then all
cosines, and speeds that end at 1/10000 exactly. This package alternates; `position_encoding="sinusoidal_halves"` is
the authors' layout. In both, a shift is a rotation.

Table 3 (E) replaces the sinusoids by a table of learned vectors, with nearly the same BLEU.

**Exercise.** A model with learned positions has a table of 16 rows. What happens to a sentence of 17 sub-words? And
to one of 17,000 in a model with sinusoids?

<details><summary>Answer</summary>

There is no 17th vector, so the model must refuse the sentence. Even a larger table would not help: rows that no
training sentence reached would hold random numbers. Sinusoids have a value anywhere, though no promise that a model
does well there.
</details>
"""

# %%
# @title Answer, computed
long_sentence = torch.randint(2, 50, (1, 17))
learned = VaswaniEncoder(VaswaniConfig(vocab_size=50, position_encoding="learned", max_position_embeddings=16))
try:
    learned(long_sentence)
except ValueError as error:
    refusal = str(error)
assert "16" in refusal
far = sinusoidal_positions(torch.tensor([17_000]), 512)
begins = ", ".join(f"{value:.3f}" for value in far[0, :4])
table(["positions", "result"], ["learned", refusal], ["sinusoids", f"PE(17000) begins with {begins}"], folded=True)
assert far.isfinite().all()

# %% [markdown]
r"""
## 4 Why Self-Attention

Why not recurrence or convolutions? The paper compares three things for sequences of length $n$ and width $d$: how
much a layer computes, how many steps must wait for one another, and how many layers lie between two positions that
depend on each other. It also hopes that attention makes models easier to interpret: see Figures 3 to 5.

### Table 1: Maximum path lengths, per-layer complexity and minimum number of sequential operations

| layer | complexity per layer | sequential operations | maximum path length |
|---|---|---|---|
| self-attention | $O(n^2 d)$ | $O(1)$ | $O(1)$ |
| recurrent | $O(n d^2)$ | $O(n)$ | $O(n)$ |
| convolutional, $k$ positions | $O(k n d^2)$ | $O(1)$ | $O(\log_k n)$ |
| self-attention, restricted to $r$ neighbours | $O(r n d)$ | $O(1)$ | $O(n/r)$ |

The restricted kind is an idea for future work in the paper. The package has it (`attention_neighborhood`; the function
is `restricted_attention_forward`, below equation 1 in `modeling_vaswani.py`). It equals full attention under a mask,
but computes the scores of near keys only, in blocks:
"""

# %%
q, k, v = (torch.randn(1, 2, 100, 16) for _ in range(3))
distance = (torch.arange(100)[:, None] - torch.arange(100)).abs()
far_away = torch.zeros(100, 100).masked_fill(distance > 4, torch.finfo(torch.float32).min)
module = nn.Module().eval()
module.is_causal = False  # type: ignore[assignment]
restricted, _ = restricted_attention_forward(module, q, k, v, None, neighborhood=9, scaling=0.25)
masked, _ = eager_attention_forward(module, q, k, v, far_away[None, None], scaling=0.25)
assert torch.allclose(restricted, masked, atol=1e-5)
print("9 neighbours: the same result as full attention under a mask")

# %% [markdown]
r"""
Complexity, counted: PyTorch counts the multiplications and additions of each layer's products, at $n = 256$ and
$d = 256$, and with each doubled. Table 1 says by how much they grow: doubling $n$ makes $n^2 d$ four times as large.
Attention is counted without its projections, as in the table. The sequential operations of the recurrent layer are the
turns of its loop; the other layers have no loop. (`recipes/benchmarks/table1.py` measures times.)

When is self-attention cheaper than recurrence? $n^2 d < n d^2$ if $n < d$: when a sentence has fewer sub-words than its
vectors have numbers. "Most often the case", says the paper, and $d = 512$ is. The first column has a sentence that is
shorter than $d$; at $n = d$ both cost the same.
"""


# %%
def counted(layer: Callable[[torch.Tensor], Any], n: int, d: int) -> int:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        layer(torch.randn(1, n, d))
    return counter.get_total_flops()


def self_attention(x: torch.Tensor) -> torch.Tensor:
    return eager_attention_forward(module, x[:, None], x[:, None], x[:, None], None, 1.0)[0]


def recurrent(x: torch.Tensor) -> torch.Tensor:
    d = x.shape[-1]
    weights, state = nn.Linear(2 * d, d), torch.zeros(1, d)
    for place in range(x.shape[1]):  # one after the other
        state = torch.tanh(weights(torch.cat((x[:, place], state), dim=-1)))
    return state


def convolutional(x: torch.Tensor) -> torch.Tensor:
    return nn.Conv1d(x.shape[-1], x.shape[-1], kernel_size=3, padding=1)(x.transpose(1, 2))


def neighbours_only(x: torch.Tensor) -> torch.Tensor:
    return restricted_attention_forward(module, x[:, None], x[:, None], x[:, None], None, 32, 1.0)[0]


grown = {}
for layer_kind in (self_attention, recurrent, convolutional, neighbours_only):
    sizes_counted = ((64, 256), (256, 256), (512, 256), (256, 512))  # n and d
    shorter, once, longer, wider = (counted(layer_kind, *size) / 1e6 for size in sizes_counted)
    grown[layer_kind.__name__] = [f"{shorter:.1f}", f"{once:.1f}", f"x {longer / once:.2f}", f"x {wider / once:.2f}"]
table(
    ["layer", "million operations, n = 64, d = 256", "n = 256, d = 256", "n doubled", "d doubled"],
    *[[name, *cells] for name, cells in grown.items()],
)

# %% [markdown]
r"""
Path length, counted: a matrix says which positions a layer connects, and its powers say how many layers are needed
until the last position depends on the first, for $n = 81$. (The paper's $\log_k n$ is of dilated convolutions, whose
$k$ positions lie further apart from layer to layer.)
"""

# %%
n = 81
gap = torch.arange(n)[:, None] - torch.arange(n)  # [to, from]
reaches: dict[str, Callable[[int], torch.Tensor]] = {  # which positions a layer of this number connects
    "self-attention": lambda number: torch.ones(n, n),
    "recurrent, in steps": lambda number: ((gap == 0) | (gap == 1)).float(),
    "convolutional, k = 3": lambda number: ((gap >= 0) & (gap <= 2)).float(),
    "convolutional, k = 3, dilated": lambda number: ((gap == 0) | (gap == 3**number) | (gap == 2 * 3**number)).float(),
    "self-attention restricted to r = 9": lambda number: (gap.abs() <= 4).float(),
}
lengths = {}
for name, connects in reaches.items():
    dependence, layers_needed = torch.eye(n), 0
    while not dependence[-1, 0]:  # of the last position on the first
        dependence = (connects(layers_needed) @ dependence).clamp(max=1)
        layers_needed += 1
    lengths[name] = layers_needed
table(["layer", "path from the first position to the last"], *lengths.items())

# %% [markdown]
r"""
## 5 Training

A model is trained to give the next token of the right translation a high probability. Its **loss** is the negative
logarithm of this probability, averaged over all tokens. $e$ to this mean is the **perplexity**: at a perplexity of 5
the model is as unsure as between five equally likely sub-words. An **epoch** is one pass through the corpus.

### 5.1 Training Data and Batching

The paper has two corpora of WMT 2014: 4.5 million sentence pairs of English and German, and 36 million of English and
French.

Text becomes numbers by **byte-pair encoding**: the vocabulary begins with single characters, and the pair of
neighbours that is most frequent in the corpus becomes a new entry, again and again. Frequent words end as one entry,
rare ones as several. English and German share one vocabulary, of about 37,000 entries in the paper. Our corpus is
small, and 600 are enough. The cell prints the sub-words of a test sentence and their numbers; `</s>` is EOS:
"""

# %%
train_pairs, test_pairs = phrasebook("train"), phrasebook("test")
tokenizer = VaswaniTokenizer.train((text for pair in train_pairs for text in pair), vocab_size=600, show_progress=False)
for text in test_pairs[2]:
    pieces = tokenizer(text).input_ids
    print(" | ".join(tokenizer.decode([piece]) for piece in pieces), pieces)


def encoded(split: str) -> Dataset:
    """Rows of `input_ids` and `labels`, both ending in EOS, with their lengths."""
    return encode_corpus(load_parallel_corpus("phrasebook", "en", "de", split), tokenizer, "en", "de")


train_rows, test_rows = encoded("train"), encoded("test")

# %% [markdown]
r"""
**Open: what a byte pair is.** The authors split the text with the Moses tokenizer, and then into byte pairs. This
package splits raw text, whose characters are bytes, so that no character is unknown. For English-French the paper has
32,000 word-pieces. The authors' are not published; this package trains its own (`tokenizer_model="wordpiece"`).

A batch is a matrix, so its shorter sentences are **padded**. To pad little, sentences of similar length go into the
same batch. Each batch holds about 25,000 source and 25,000 target tokens, however many sentences that are:
"""

# %%
show(plan_batches)
source_lengths, target_lengths = (np.array(train_rows[f"{side}_length"][:]) for side in ("source", "target"))
plan = plan_batches(source_lengths, target_lengths, PAPER_BATCH_TOKENS, PAPER_BATCH_TOKENS)
shuffled = np.array_split(np.random.default_rng(0).permutation(len(train_rows)), len(plan.batches))


def padding(batches: Sequence[np.ndarray]) -> float:
    """Share of padding among the source tokens of some batches."""
    return 1 - source_lengths.sum() / sum(len(batch) * source_lengths[batch].max() for batch in batches)


sizes_of_batches = [len(batch) * source_lengths[batch].max() for batch in plan.batches]
print(f"{len(plan.batches)} batches of {min(map(len, plan.batches))} to {max(map(len, plan.batches))} sentence pairs,")
print(f"of at most {max(sizes_of_batches):,} source tokens each, padding included")
print(f"share of padding: {padding(plan.batches):.1%}; if the same sentences came at random: {padding(shuffled):.1%}")
assert max(sizes_of_batches) <= PAPER_BATCH_TOKENS

figure = Figure(figsize=(9, 2.6), layout="constrained")
for axes, batch, title in zip(
    figure.subplots(1, 2),
    (shuffled[0], plan.batches[8]),
    ("a batch at random", "a batch of similar lengths"),
    strict=True,
):
    ordered = np.sort(source_lengths[batch])
    axes.bar(range(len(batch)), ordered, width=1, label="tokens")
    axes.bar(range(len(batch)), ordered.max() - ordered, bottom=ordered, width=1, color="0.85", label="padding")
    axes.set(title=title, xlabel="sentence", ylabel="length")
    axes.legend(fontsize=8)
draw(figure)

# %% [markdown]
r"""
**Open: "about".** The paper's 25,000 is approximate. Here it is a limit, of all devices together, padding included.

**Open: mixing.** If the same sentences met in every epoch, the gradient would be less random. Each epoch here
exchanges sentences among four batches of similar length (`batch_window`).

**Open: cleaning.** Pairs longer than 256 sub-words, or with sides whose lengths differ by more than a factor of five,
are left out (`max_length`, `max_ratio`).

### 5.2 Hardware and Schedule

The paper trained on eight GPUs, NVIDIA P100. The base model took 100,000 steps of 0.4 seconds, the big model 300,000
steps of 1.0 second. The file that the cell prints is the configuration of the base model's training in the package:
"""

# %%
for name, seconds_a_step in (("base", 0.4), ("big", 1.0)):
    steps, hours = PAPER_TRAININGS[name]
    computed = seconds_a_step * steps / 3600
    print(f"{name:<5}{steps:>7,} steps x {seconds_a_step} s = {computed:.1f} hours; the paper says {hours:.0f}")
    print(f"     {steps * PAPER_BATCH_TOKENS / 1e9:.1f} billion target tokens")
print((ROOT / "recipes" / "configs" / "wmt14_en_de_base.yaml").read_text(encoding="utf-8"))

# %% [markdown]
r"""
**Open: precision.** The authors trained in 32-bit numbers. The configuration has `precision: bf16`, which needs less
memory and is faster on today's GPUs; `--precision float32` trains as they did.

**Open: English-French big.** Here it is the big model with less dropout, as the paper says. The authors' code had a
wider feed-forward network ($d_{ff} = 8192$) and a softmax of its own.

### 5.3 Optimizer

The optimizer says how far each parameter moves in a step. It is Adam, with $\beta_1 = 0.9$, $\beta_2 = 0.98$ and
$\epsilon = 10^{-9}$. Adam keeps two running means for each parameter, of its gradient $g$ and of the gradient's square:

$$m \leftarrow \beta_1 m + (1 - \beta_1)\,g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\,g^2, \qquad
\mathrm{step} = -lrate \cdot \hat m / (\sqrt{\hat v} + \epsilon)$$

Both begin at 0; $\hat m = m / (1 - \beta_1^t)$ and $\hat v = v / (1 - \beta_2^t)$ make up for it in step $t$. So a
gradient is divided by its usual size, and the **learning rate** says how far a parameter moves. A mean with $\beta$
remembers about $1 / (1 - \beta)$ steps, as the cell prints. The usual $\beta_2$ is 0.999. The paper's forgets sooner,
so that the divisor soon follows a gradient that grows; the paper does not say why.

The paper's rate rises for `warmup_steps` steps (4,000), and then falls with the root of the step number:

$$lrate = d_{model}^{-0.5} \cdot \min(step\_num^{-0.5},\; step\_num \cdot warmup\_steps^{-1.5}) \qquad (3)$$
"""

# %%
show(noam_learning_rate)
defaults = {field.name: field.default for field in dataclasses.fields(VaswaniTrainingArguments)}
print({name: defaults[name] for name in ("adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm")})
print("steps that a mean remembers:", {beta: round(1 / (1 - beta)) for beta in (0.9, 0.98, 0.999)})

figure = Figure(figsize=(7, 3), layout="constrained")
axes = figure.subplots()
steps_drawn = range(1, 40_001, 50)
for warmup in (1000, 4000, 16_000):
    axes.plot(
        steps_drawn,
        [noam_learning_rate(step, 512, warmup) for step in steps_drawn],
        label=f"warm-up of {warmup:,} steps",
    )
    print(f"warm-up of {warmup:>6,} steps: at most {noam_learning_rate(warmup, 512, warmup):.1e}")
axes.plot(
    steps_drawn,
    [noam_learning_rate(step, 1024, 4000) for step in steps_drawn],
    "--",
    label="4,000 steps, $d_{model} = 1024$",
)
axes.set(xlabel="step", ylabel="learning rate")
axes.legend()
draw(figure)

# %% [markdown]
r"""
Both branches of the minimum meet at `warmup_steps`. A longer warm-up lowers the peak. It changes nothing after its
peak: from there on the three curves are one. A wider model has a lower rate throughout.

**Open: clipping.** The paper names none, the authors' code has none, and so `max_grad_norm` is 0.

**Exercise.** Why warm up at all? Train a stack of six encoder layers to reverse a row of symbols: as the paper builds
it (post-norm), with the full rate from the first step on or with a warm-up; with the normalisation in front of each
sub-layer (pre-norm); and post-norm without the residual connections. Try three rates. Which of the twelve learn?

<details><summary>Answer</summary>

It depends on the rate. At the lowest, post-norm needs no warm-up, and learns even faster without: no steps are lost.
At the middle rate it learns only with a warm-up, and at the highest not even then. So a warm-up is the price of a high
rate. Pre-norm learns at all three without: one reason why later models have it. Without residual connections the stack
does not learn to reverse at any of them.
</details>
"""

# %%
# @title Answer, computed


class PreNormLayer(VaswaniEncoderLayer):
    """The encoder layer in the other order, without dropout: `x + Sublayer(LayerNorm(x))`."""

    def forward(self, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> torch.Tensor:
        attended, _ = self.self_attn(self.self_attn_residual.norm(hidden_states), attention_mask, **kwargs)
        hidden_states = hidden_states + attended
        return hidden_states + self.feed_forward(self.feed_forward_residual.norm(hidden_states))


def loss_of_reversing(layer_class: type[VaswaniEncoderLayer], rate: float, warmup: int = 1) -> float:
    """Train a stack of six layers; return its mean loss in the last 20 steps."""
    torch.manual_seed(0)
    config = VaswaniConfig(vocab_size=12, d_model=64, d_ff=128, num_heads=4, encoder_layers=6, dropout=0.0)
    stack = VaswaniEncoder(config)
    answer = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 12))  # pre-norm needs the last LayerNorm, post-norm has it
    for number, layer in enumerate(stack.layers):
        stack.layers[number] = layer_class(config, number)
        stack.layers[number].load_state_dict(layer.state_dict())  # the same weights to begin with

    def loss_of_batch() -> torch.Tensor:
        symbols = torch.randint(2, 12, (32, 8))
        return F.cross_entropy(answer(stack(symbols)[0]).flatten(0, 1), symbols.flip(1).flatten())

    return float(np.mean(fit([stack, answer], loss_of_batch, 240, rate, warmup)[-20:]))


rates = (1e-3, 5e-3, 1e-2)
learned_by = {
    "post-norm": [loss_of_reversing(VaswaniEncoderLayer, rate) for rate in rates],
    "post-norm, warm-up": [loss_of_reversing(VaswaniEncoderLayer, rate, 100) for rate in rates],
    "pre-norm": [loss_of_reversing(PreNormLayer, rate) for rate in rates],
}
with mock.patch.object(VaswaniResidual, "forward", only_the_sublayer):
    learned_by["no residual, warm-up"] = [loss_of_reversing(VaswaniEncoderLayer, rate, 100) for rate in rates]
table(
    [f"loss (guessing: {math.log(10):.2f})", *(f"rate {rate:g}" for rate in rates)],
    *[[name, *map("{:.2f}".format, ends)] for name, ends in learned_by.items()],
    folded=True,
)
assert learned_by["post-norm"][0] < 1 < min(learned_by["post-norm"][1:])
assert learned_by["post-norm, warm-up"][1] < 1 < learned_by["post-norm, warm-up"][2]
assert max(learned_by["pre-norm"]) < 1 < min(learned_by["no residual, warm-up"])

# %% [markdown]
r"""
### 5.4 Regularization

Regularization makes it harder for a model to learn its corpus by heart.

**Residual dropout** sets a tenth of the numbers to zero in training, chosen anew in each step, and makes the others
larger to keep the mean. Where does it stand? One place is `VaswaniResidual` (3.1), another the sum below. The cell lets
the small model of section 3.2.3 run in training, and notes every call of dropout:
"""

# %%
show(modeling_vaswani.VaswaniEmbeddingMixin.add_positions)
calls: Counter[tuple[str, float]] = Counter()


def noted_dropout(hidden_states: torch.Tensor, probability: float, training: bool) -> torch.Tensor:
    calls[inspect.currentframe().f_back.f_code.co_qualname, probability] += 1
    return hidden_states


with mock.patch.object(modeling_vaswani, "drop_out", noted_dropout):
    small_model.train()(**pair)
small_model.eval()
table(
    ["where", "probability", "calls, of 2 + 2 layers"],
    *[[f"`{place}`", p, count] for (place, p), count in calls.items()],
)
assert calls["VaswaniResidual.forward", 0.1] == 2 * 2 + 2 * 3  # each sub-layer of encoder and decoder
assert {place for place, p in calls if p} == {"VaswaniResidual.forward", "VaswaniEmbeddingMixin.add_positions"}

# %% [markdown]
r"""
**Open: the other places.** The paper names these two: the output of each sub-layer, and the sum of embedding and
position. Many later implementations also drop attention weights and inner numbers of the feed-forward network. In the
authors' hyper-parameters of the paper both probabilities are 0, as in the table.

**Label smoothing** changes the target: instead of all probability on the right sub-word, $\epsilon_{ls} = 0.1$ of it
is spread over the whole vocabulary. Here is the target for a vocabulary of ten, when number 3 is right:
"""

# %%
show(SmoothedCrossEntropy.forward, LabelSmoothedLoss.__call__)
epsilon, vocabulary, right = 0.1, 10, 3
target_distribution = torch.full((vocabulary,), epsilon / vocabulary)
target_distribution[right] += 1 - epsilon
logits = torch.randn(1, 1, vocabulary)
smoothed = LabelSmoothedLoss(epsilon)({"logits": logits}, torch.tensor([[right]]))
assert torch.allclose(smoothed, F.cross_entropy(logits[0], target_distribution[None]))
print("The package's loss is the cross-entropy with this distribution:", round(smoothed.item(), 4))
figure = Figure(figsize=(5, 2.2), layout="constrained")
axes = figure.subplots()
axes.bar_label(axes.bar(range(vocabulary), target_distribution), fmt="%.2f", fontsize=8)
axes.set(xlabel="sub-word", ylabel="target", ylim=(0, 1.1), xticks=range(vocabulary))
draw(figure)

# %% [markdown]
r"""
"This hurts perplexity, as the model learns to be more unsure, but improves accuracy and BLEU score." Even a perfect
model of this target gives the right sub-word less than 1, and its perplexity stays above 1.

**Open: over which sub-words.** Szegedy et al., whom the paper cites, spread $\epsilon$ over all $V$ sub-words, the
right one included, and so does this package. The authors' code gives the right one $1 - \epsilon$, and each of the
others $\epsilon / (V - 1)$. With 37,000 sub-words the two can hardly be told apart:
"""

# %%
for size in (10, 37_000):
    ours, theirs = 1 - epsilon + epsilon / size, 1 - epsilon
    print(f"V = {size:>6,}: the right sub-word has {ours:.6f} here, {theirs:.6f} in the authors' code")
    print(f"            the best possible perplexity is {1 / ours:.3f}")

# %% [markdown]
r"""
**Exercise.** With $\epsilon_{ls} = 0.1$ and 37,000 sub-words: a model gives the right sub-word the probability $p$, and
shares the rest equally. With which $p$ is the loss smallest, and how small is it?

<details><summary>Answer</summary>

With that of the target, hardly more than $0.9$. Both less and more cost, so that training pulls an over-confident model
back. The loss is then the entropy of the target. It is far from 0, since each of the 37,000 small shares costs a large
logarithm. So the loss of a smoothed training tells little by itself: this package also logs the one without smoothing
(`nll_loss`).
</details>
"""

# %%
# @title Answer, computed
smoothed_losses = {}
for p in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
    logits = torch.full((1, 1, 37_000), math.log((1 - p) / 36_999))
    logits[..., right] = math.log(p)
    smoothed_losses[p] = LabelSmoothedLoss(epsilon)({"logits": logits}, torch.tensor([[right]])).item()
table(
    ["p", "loss with smoothing", "without"],
    *[[p, f"{loss:.3f}", f"{-math.log(p):.3f}"] for p, loss in smoothed_losses.items()],
    folded=True,
)
assert min(smoothed_losses, key=smoothed_losses.__getitem__) == 0.9

# %% [markdown]
r"""
### It learns: the copy task

All parts are there. Before a language, a task whose answer everybody knows: copy a row of symbols. Encoder and
decoder have one layer each. `VaswaniTrainer` brings the batches of 5.1, the loss of 5.4 and Adam of 5.3, and
`NoamSchedule` equation 3. One row that is not in the training is copied again and again:
"""

# %%
EOS, SYMBOLS = 1, range(3, 19)
numbers = np.random.default_rng(0)
rows_to_copy = [[*numbers.choice(SYMBOLS, numbers.integers(3, 9)).tolist(), EOS] for _ in range(4000)]
unseen = rows_to_copy[:100]
rows_to_copy = [row for row in rows_to_copy if row not in unseen]


class Watch(TrainerCallback):
    """Calls a function with the model, the step and the log, every so many steps."""

    def __init__(self, every: int, look: Callable[[PreTrainedModel, int, list], None]) -> None:
        self.every, self.look = every, look

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            kwargs["model"].eval()
            self.look(kwargs["model"], state.global_step, state.log_history)
            kwargs["model"].train()


def train(
    model: PreTrainedModel,
    rows: Dataset,
    folder: Path,
    steps: int,
    callbacks: list,
    validation_rows: Dataset | None = None,
    validation_bleu: Callable | None = None,
    **options: Any,
) -> list[dict[str, float]]:
    """Train a model, print nothing but what the callbacks print, and return the log."""
    arguments = VaswaniTrainingArguments(
        str(folder), max_steps=steps, use_cpu=True, report_to="none", disable_tqdm=True, **options
    )
    trainer = VaswaniTrainer(
        model,
        arguments,
        validation_bleu,
        train_dataset=rows,
        eval_dataset=validation_rows,
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.state.log_history


def copied(model: PreTrainedModel, step: int, log: list) -> None:
    with torch.no_grad():
        written = model.generate(torch.tensor(unseen[:1]))[0, 1:].tolist()
    given, written = (" ".join(str(symbol) for symbol in row if symbol != EOS) for row in (unseen[0], written))
    print(f"step {step:>3}: {given}  ->  {written}")


copy_config = VaswaniConfig(
    vocab_size=SYMBOLS.stop, d_model=64, d_ff=128, num_heads=4, encoder_layers=1, decoder_layers=1, dropout=0.0
)
torch.manual_seed(0)
copier = VaswaniForConditionalGeneration(copy_config)
log_of_copier = train(
    copier,
    Dataset.from_dict({"input_ids": rows_to_copy, "labels": rows_to_copy}),
    new_folder(),
    steps=400,
    source_tokens=500,
    target_tokens=500,
    save_strategy="no",
    callbacks=[NoamSchedule(warmup_steps=100, factor=0.3), Watch(50, copied)],
)

# %% [markdown]
r"""
How many of 100 rows that are not in the training are copied without a mistake? And how does the model do it? The
picture shows the encoder-decoder attention: which place of the source (column) the decoder looks at when it writes a
symbol (row). Nobody told the model about the diagonal.
"""

# %%
copier.eval()
sources = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in unseen], batch_first=True)
outputs = copier.generate(sources)[:, 1:]
is_right = [row == [*output[: len(row)]] for row, output in zip(unseen, outputs.tolist(), strict=True)]
print(f"{sum(is_right)} of 100 unseen rows are copied without a mistake")
assert sum(is_right) >= 80
copier.set_attn_implementation("eager")
one = torch.tensor(unseen[:1])
with torch.no_grad():
    looks = copier(one, labels=one, output_attentions=True).cross_attentions[0][0]  # [heads, target, source]
names = [*map(str, unseen[0][:-1]), "EOS"]
figure = Figure(figsize=(9.5, 2.9), layout="constrained")
for number, axes in enumerate(figure.subplots(1, 4)):
    heatmap(axes, looks[number], names if number == 0 else [], names, f"head {number + 1}")
draw(figure)

# %% [markdown]
r"""
### It learns: a first translation

Now the corpus of section 2. Two layers in each stack are enough for it, with four heads and a width of 128: the cell
prints the number of parameters. The model trains without dropout, because it sees each sentence only a few times (the
legend of the curve names dropout nevertheless). The training takes a few minutes. While it runs, one sentence of the
test set is translated again and again. The curve shows the loss, the learning rate, and **BLEU**, a score of
translations from 0 to 100 (6.1), of held-out sentences.
"""

# %%
run = new_folder()
sentence, translation = test_pairs[2]
print(f"{sentence}\n{translation}\n")
shown_curve = display(display_id=True)


def show_curve(log: list) -> None:
    plot_learning_curve(log, run / "curve.png")
    shown_curve.update(Image(run / "curve.png", width=560))


def translated(model: PreTrainedModel, step: int, log: list) -> None:
    with torch.no_grad():
        ids = model.generate(**tokenizer(sentence, return_tensors="pt"))[0]
    print(f"step {step:>3}: {tokenizer.decode(ids, skip_special_tokens=True)}")
    show_curve(log)


torch.manual_seed(0)
sizes = VaswaniConfig(
    vocab_size=len(tokenizer),
    d_model=128,
    d_ff=512,
    num_heads=4,
    encoder_layers=2,
    decoder_layers=2,
    dropout=0.0,
    source_language="en",
    target_language="de",
)
model = VaswaniForConditionalGeneration(sizes)
print(f"{model.num_parameters():,} parameters\n")
english, german = zip(*phrasebook("validation")[:100], strict=True)
log_history = train(
    model,
    train_rows,
    run,
    steps=600,
    source_tokens=2000,
    target_tokens=2000,
    logging_steps=25,
    save_steps=20,
    eval_strategy="steps",
    eval_steps=100,
    save_total_limit=5,
    callbacks=[NoamSchedule(warmup_steps=150, factor=0.5), Watch(50, translated)],
    validation_rows=encoded("validation").select(range(100)),
    validation_bleu=ValidationBleu(english, german, tokenizer, num_beams=1),
)
show_curve(log_history)

# %% [markdown]
r"""
## 6 Results

### 6.1 Machine Translation

**Averaging.** A **checkpoint** is a model as it is stored during training. The paper's model is not the last one, but
the average of the last five, parameter by parameter (of the last twenty for the big model). Late steps of training
wander around a good place; their mean lies nearer to it. Lower perplexity is better:
"""

# %%
show(average_checkpoints)
hundred_rows = encoded("test").select(range(100))
checkpoints = sorted(run.glob("checkpoint-*"), key=lambda folder: int(folder.name.partition("-")[2]))  # the last five
for folder in [*checkpoints, None]:
    weights_of = average_checkpoints(checkpoints if folder is None else [folder])
    model.load_state_dict(weights_of, strict=False)
    measured = perplexity(model, tokenizer, hundred_rows)
    print(f"{folder.name if folder else 'their average':<16} perplexity {measured.perplexity:.3f}")
words_and_ends = sum(len(german.split()) + 1 for _, german in test_pairs[:100])  # EOS counts in both
per_word = math.exp(measured.nats_per_token * measured.tokens / words_and_ends)
print(f"{per_word:.3f} per word: {measured.tokens} sub-words are {words_and_ends} words")

# %% [markdown]
r"""
These perplexities are per sub-word, as those of Table 3 are "per-wordpiece". A text has one probability, but fewer
words than sub-words, so that its perplexity per word is higher. Perplexities compare only between models with the same
sub-words.

**Open: which checkpoints.** The paper's were written every 10 minutes. The configurations of this package save by
steps, at 10 minutes of the paper's machine, so that the result does not depend on the speed of yours;
`--save_minutes` saves by time.

**Beam search.** The decoder gives probabilities for the next token only. The most probable sentence need not begin with
the most probable token. Beam search keeps four beginnings alive, the **hypotheses** of the **beam**. In each step every
one is extended by every sub-word. Extensions that end in EOS are finished, and the best four of the others live on.

The log-probability of a hypothesis is the sum of its tokens' log-probabilities. Every further token lowers it.
Finished sentences are therefore compared by a score that divides by a **length penalty** (Wu et al., 2016). $|Y|$ is
the number of tokens with EOS, and $\alpha = 0.6$:

$$score(Y) = \log P(Y \mid X) / lp(Y), \qquad lp(Y) = \left(\frac{5 + |Y|}{6}\right)^\alpha$$
"""

# %%
show(length_penalty, BeamSearch.advance)

# %% [markdown]
r"""
Two sentences, with the search recorded. Each line is a step, with the best two of the four hypotheses that live on
after it, and their log-probabilities. The second table has what finished, ranked by $\alpha = 0.6$.
"""


# %%
def words_so_far(trace: SearchTrace, step: int, index: int) -> str:
    candidate = trace.candidate((step, index))
    before = "" if candidate.parent is None else words_so_far(trace, step - 1, candidate.parent)
    return before + candidate.text.replace("</s>", " EOS")


two_sentences = ["The old man reads a book.", "Because she is tired, she can not sleep."]
for text in two_sentences:
    trace = trace_search(model, tokenizer, text)
    lines_shown = []
    for number, step in enumerate(trace.steps, start=1):
        alive = [
            f"{words_so_far(trace, number, index).strip()} ({step.candidates[index].score:.2f})"
            for index in step.live[:2]
        ]
        lines_shown.append([number, *alive])
    display(Markdown(f"**{text}** {len(trace.steps)} steps of at most {trace.length_limit}"))
    table(["step", "best live hypothesis", "second best"], *lines_shown)
    rows = []
    for found_at in trace.steps[-1].finished:
        length, log_probability = found_at[0], trace.candidate(found_at).score
        penalized = [log_probability / length_penalty(length, alpha, "gnmt") for alpha in (0.0, 0.6, 1.0)]
        rows.append([words_so_far(trace, *found_at).strip(), length, *(f"{score:.3f}" for score in penalized)])
    table(["finished", "length", "score, alpha = 0", "alpha = 0.6", "alpha = 1"], *rows)

# %% [markdown]
r"""
Without a penalty ($\alpha = 0$), the log-probability decides alone, which favours short translations. With a larger
$\alpha$, translations become longer:
"""

# %%
english_texts = [english for english, _ in test_pairs[:200]]
for alpha in (0.0, 0.6, 2.0):
    written = translate_corpus(model, tokenizer, english_texts, show_progress=False, length_penalty=alpha)
    print(f"alpha = {alpha}: {sum(len(text.split()) for text in written)} words in {len(english_texts)} translations")
figure = Figure(figsize=(5, 2.4), layout="constrained")
axes = figure.subplots()
for alpha in (0.0, 0.3, 0.6, 1.0):
    penalties = [float(length_penalty(length, alpha, "gnmt")) for length in range(1, 51)]
    axes.plot(range(1, 51), penalties, label=f"alpha = {alpha}")
axes.set(xlabel="length in sub-words", ylabel="length penalty")
axes.legend(fontsize=8)
draw(figure)

# %% [markdown]
r"""
**Exercise.** Greedy search takes the most probable token in each step: it is beam search with one beam. Translate with
1, 4 and 16 beams and $\alpha = 0$, so that the search looks for the most probable sentence. Does a wider beam always
find one that is at least as probable? Does it translate better?

<details><summary>Answer</summary>

Here it does, although nothing guarantees it: the beginning of the greedy sentence may fall out of a beam. But BLEU
falls: among the most probable sentences are some that are too short, and a wider beam finds more of them. So beams need
the length penalty. (BLEU is explained below, and is printed there with $\alpha = 0.6$.)
</details>
"""

# %%
# @title Answer, computed
references = [german for _, german in test_pairs[:200]]
log_probabilities: dict[int, np.ndarray] = {}
results = []
for beams in (1, 4, 16):
    written, searched = translate_with_scores(
        model, tokenizer, english_texts, show_progress=False, num_beams=beams, length_penalty=0.0
    )
    log_probabilities[beams] = np.array([each.log_probability for each in searched])
    gained = (log_probabilities[beams] - log_probabilities[1]).round(3)
    bleu = score_translations(written, [[german] for german in references], "de").paper_bleu.score
    results.append([beams, f"{log_probabilities[beams].mean():.3f}", sum(gained > 0), sum(gained < 0), f"{bleu:.1f}"])
table(["beams", "log-probability, mean", "more probable than greedy", "less probable", "BLEU"], *results, folded=True)
assert log_probabilities[1].mean() < min(log_probabilities[4].mean(), log_probabilities[16].mean())

# %% [markdown]
r"""
**Open: when to stop.** The limit is the source's length plus 50 tokens; the paper adds "terminate early when
possible". The authors' code stops when no live hypothesis can still win. The best that it can reach is its
log-probability so far, divided by the penalty of the greatest length. This bound must be below the score of a finished
hypothesis: in 2017 the worst of those kept, later the best. Here it is the best, since only the best is returned. If
nothing has finished at the limit, the best live hypotheses are returned. `"never"` below is this rule; other
libraries have the other two.

The explorer shows all of it on one page: every candidate with its fate, attention, and the alternatives to each word.
(GitHub shows no such frames. In Jupyter, run the cell.)
"""

# %%
show(BeamSearch.stopping_scores)
display(explore(model, tokenizer, two_sentences[0], alternatives=2))

# %% [markdown]
r"""
**BLEU** compares translations with references, which are right. An n-gram is a row of $n$ words. For $n$ from 1 to 4
BLEU counts the n-grams of the translation, and how many of them the reference has, each at most as often as there. The
score is the geometric mean of the four shares, times a brevity penalty for translations that are shorter than the
reference. For a test set, the counts of all sentences are added first. By hand, for one sentence:
"""

# %%
hypothesis = ["the", "old", "man", "reads", "a", "big", "book", "in", "the", "house"]
reference_words = ["the", "old", "man", "reads", "a", "book", "in", "the", "big", "house"]
logarithms = []
for order_of in range(1, 5):
    ours_counted, theirs_counted = (
        Counter(tuple(side[start : start + order_of]) for start in range(len(side) - order_of + 1))
        for side in (hypothesis, reference_words)
    )
    matches = sum((ours_counted & theirs_counted).values())  # clipped: the smaller of both counts
    print(f"{order_of}-grams: {matches} of {ours_counted.total()} are in the reference")
    logarithms.append(math.log(matches / ours_counted.total()))
brevity = min(1.0, math.exp(1 - len(reference_words) / len(hypothesis)))
bleu = 100 * brevity * math.exp(sum(logarithms) / 4)
print(f"BLEU = {bleu:.2f}")
assert math.isclose(bleu, multi_bleu([" ".join(hypothesis)], [" ".join(reference_words)]), rel_tol=1e-6)

# %% [markdown]
r"""
**Open: which BLEU.** The number depends on what a word is. The authors' script tokenized with Moses, and split German
compounds at their hyphens, so that a compound counts as several words. That raises the score; papers today report
sacreBLEU, which leaves them whole. This package prints both. They differ little here: our corpus has no hyphens.
"""

# %%
show(split_compounds)
print(paper_tokenizer("de")("Der EU-Kommissar traf die CDU-Vorsitzende."))
written = translate_corpus(model, tokenizer, english_texts, show_progress=False)
assert not any("-" in german for _, german in test_pairs)
scored = score_translations(written, [[german] for _, german in test_pairs[:200]], "de")
print(f"{len(english_texts)} sentences of the test set: BLEU as in the paper {scored.paper_bleu.score:.1f},")
print(f"sacreBLEU {scored.sacrebleu.score:.1f}")
table(["source", "translation", "reference"], *[[english_texts[n], written[n], test_pairs[n][1]] for n in range(6)])

# %% [markdown]
r"""
### Table 2: BLEU and training cost

The paper's own numbers, on newstest2014 (the text of section 6.1 says 41.0 for the last BLEU of the big model):

| model | BLEU, English-German | BLEU, English-French | training cost, FLOPs (German, French) |
|---|---|---|---|
| ByteNet | 23.75 | | |
| Deep-Att + PosUnk | | 39.2 | -, $1.0 \cdot 10^{20}$ |
| GNMT + RL | 24.6 | 39.92 | $2.3 \cdot 10^{19}$, $1.4 \cdot 10^{20}$ |
| ConvS2S | 25.16 | 40.46 | $9.6 \cdot 10^{18}$, $1.5 \cdot 10^{20}$ |
| MoE | 26.03 | 40.56 | $2.0 \cdot 10^{19}$, $1.2 \cdot 10^{20}$ |
| Deep-Att + PosUnk, ensemble | | 40.4 | -, $8.0 \cdot 10^{20}$ |
| GNMT + RL, ensemble | 26.30 | 41.16 | $1.8 \cdot 10^{20}$, $1.1 \cdot 10^{21}$ |
| ConvS2S, ensemble | 26.36 | 41.29 | $7.7 \cdot 10^{19}$, $1.2 \cdot 10^{21}$ |
| Transformer, base | 27.3 | 38.1 | $3.3 \cdot 10^{18}$ |
| Transformer, big | 28.4 | 41.8 | $2.3 \cdot 10^{19}$ |

The cost is time × devices × the rate that a device sustains, which the paper estimates as 9.5 TFLOPS for its P100
(footnote 5). That counts what the devices could have computed. The shapes of the matrices say what the training
needed, for full batches of sentences of 25 tokens, which is our guess:
"""

# %%
show(paper_cost)
for name, printed in (("base", "3.3e+18"), ("big", "2.3e+19")):
    cost = paper_cost(name, VaswaniConfig.from_variant(name))
    spent = f"{cost.seconds / 3600:.0f} h x {PAPER_DEVICES} x {PAPER_RATE / 1e12} TFLOPS"
    print(f"{name:<5}{spent} = {cost.by_the_papers_accounting:.1e} FLOPs")
    print(f"     the shapes need {cost.counted:.1e}, which is {cost.utilisation:.0%} of it")
    assert f"{cost.by_the_papers_accounting:.1e}" == printed

# %% [markdown]
r"""
### 6.2 Model Variations

How much does each part matter? The paper changes one thing at a time, and scores on newstest2013, without averaging
checkpoints: (A) the number of heads, (B) the width of keys, (C) the size of the model, (D) dropout and label smoothing,
(E) learned positions.

### Table 3: Variations on the Transformer architecture

The package knows each row by name. Perplexity and BLEU below are the paper's. The parameters are counted in models
that the cell builds, with the 40,960 rows that the authors' code allocated, beside the paper's millions. Every row
comes out, but for the big model.
"""

# %%
printed_millions = {
    "base": 65, "B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50, "C-N8": 80, "C-d256": 28, "C-d1024": 168,
    "C-ff1024": 53, "C-ff4096": 90, "big": 213,
}  # fmt: skip


def millions(name: str, rows_of_matrix: int) -> float:
    with torch.device("meta"):  # shapes without numbers
        return (
            VaswaniForConditionalGeneration(
                VaswaniConfig.from_variant(name, vocab_size=rows_of_matrix)
            ).num_parameters()
            / 1e6
        )


counts = {name: millions(name, 40_960) for name in PAPER_VARIANTS}
table(
    ["row", "differs in", "perplexity", "BLEU", "parameters, paper", "parameters, counted"],
    *[
        [
            name,
            ", ".join(f"{key} {value}" for key, value in PAPER_VARIANTS[name].items()),
            *PAPER_SCORES[name],
            printed_millions.get(name, ""),
            f"{counts[name]:.1f}",
        ]
        for name in PAPER_VARIANTS
    ],
)
assert all(round(counts[name]) == number for name, number in printed_millions.items() if name != "big")
print(f"big with 36,000 rows: {millions('big', 36_000):.0f} million; base with 37,000: {millions('base', 37_000):.1f}")

# %% [markdown]
r"""
One row in detail, B with $d_k = 16$: narrower queries and keys, values as wide as before. The paper's reading:
"determining compatibility is not easy", since BLEU falls by the difference that the cell prints. What is smaller is
$W^Q$ and $W^K$ of 18 attentions, one in each layer of the encoder and two in each of the decoder:
"""

# %%
for name in ("base", "B-dk16"):
    one_attention = VaswaniAttention(VaswaniConfig.from_variant(name))
    print(
        f"{name:<8}",
        {each: list(getattr(one_attention, each).weight.shape) for each in ("q_proj", "k_proj", "v_proj", "out_proj")},
    )
saved = 18 * 2 * (512 * (512 - 8 * 16) + (512 - 8 * 16))
print(f"18 attentions x 2 matrices x (512 x 384 weights + 384 biases) = {saved / 1e6:.2f} million fewer")
assert math.isclose(saved / 1e6, counts["base"] - counts["B-dk16"])
(base_ppl, base_bleu), (row_ppl, row_bleu) = PAPER_SCORES["base"], PAPER_SCORES["B-dk16"]
print(f"BLEU: {row_bleu - base_bleu:+.1f}; perplexity: {row_ppl - base_ppl:+.2f}")

# %% [markdown]
r"""
`recipes/reproduce_table3.py` trains the rows, on your corpus and at any width, and sets them beside the paper's.

### 6.3 English Constituency Parsing

Does the model work for something else than translation? A **parse** is a tree over the words of a sentence. Its inner
nodes are phrases (`S` is the sentence, `NP` a noun phrase, `VP` a verb phrase, `PP` a prepositional phrase), and each
word has a part of speech (`DT` is an article, `NN` a noun). A tree can be written as a sequence of labels. A phrase
opens with its label, a word is its part of speech, and a phrase closes with `/` and its label. `TOP`, which all trees
have, is left out.
"""

# %%
gold = next(tree for tree in read_treebank("demo", "test") if len(tree.leaves()) == 9)
print(" ".join(gold.leaves()))
print(" ".join(sequence_of_tree(gold)))
gold.pretty_print()

# %% [markdown]
r"""
A parser is then the same model, with a target vocabulary of labels. This one learns the package's small treebank, of
sentences with at most ten words. The cell searches twice: freely, and among those labels only that continue a
well-formed tree (`LegalParse`). **F1** says how many phrases are right, from 0 to 100: it is the harmonic mean of two
shares, of the parse's phrases that the true tree has, and of the true tree's phrases that the parse has.

**Open: no tree.** The paper does not say what happens to a sequence that is no tree. The package repairs it.

**Open: batches and checkpoints.** Neither the size of a parser's batches nor which checkpoints were averaged is told.
The configurations of the package have batches of their own, and average the last five checkpoints, 1,000 steps apart.
"""

# %%
trees = new_folder() / "trees"
prepare_treebank(trees, TreebankOptions(train=["demo"], validation=["demo"], test=["demo"], vocab_size=500))
labels_tokenizer = AutoTokenizer.from_pretrained(trees / "tokenizer", trust_remote_code=False)
lines = (trees / "train.jsonl").read_text(encoding="utf-8").splitlines()
sentences_and_labels = [
    {"translation": row["translation"]} for row in map(json.loads, lines) if len(row["translation"]["en"].split()) <= 10
]
torch.manual_seed(0)
parser = VaswaniForConstituencyParsing(
    VaswaniParsingConfig(
        vocab_size=len(labels_tokenizer),
        d_model=64,
        d_ff=256,
        num_heads=4,
        encoder_layers=1,
        decoder_layers=1,
        dropout=0.0,
        source_language="en",
        target_language="parse",
    )
)
train(
    parser,
    encode_corpus(Dataset.from_list(sentences_and_labels), labels_tokenizer, "en", "parse"),
    new_folder(),
    steps=300,
    source_tokens=2000,
    target_tokens=2000,
    save_strategy="no",
    callbacks=[NoamSchedule(warmup_steps=100, factor=0.7)],
)

short = [tree for tree in read_treebank("demo", "test") if len(tree.leaves()) <= 10]
for constrained in (False, True):
    parses = parse_corpus(
        parser, labels_tokenizer, [tree.leaves() for tree in short], constrained=constrained, num_beams=4
    )
    parser_scores = score_parser([tree_in_one_line(tree) for tree in short], parses)
    print(
        f"{'well-formed trees only' if constrained else 'free search':<24}F1 {parser_scores.all_sentences.f1:.1f}, "
        f"{parser_scores.repaired} of {parser_scores.sentences} parses had to be repaired"
    )
parse = parses[short.index(gold)].tree
is_gold = tree_in_one_line(parse) == tree_in_one_line(gold)
print("The parse of the sentence above is", "right:" if is_gold else "wrong:")
Tree.fromstring(parse).pretty_print()

# %% [markdown]
r"""
### Table 4: English constituency parsing

The paper's numbers, F1 on section 23 of the Wall Street Journal (WSJ). Its parser has four layers of
$d_{model} = 1024$, and searches with a beam of 21, $\alpha = 0.3$ and at most 300 tokens more than the source has. "WSJ
only" means 40,000 sentences with trees; "semi-supervised" adds 17 million that other parsers have parsed:
"""

# %%
table(["parser", "trained on", "F1"], *PAPER_PARSERS)

# %% [markdown]
r"""
## 7 Conclusion

The paper ends with plans: other inputs than text, restricted attention, generation that is less sequential. To go on
from here, `make demo` trains the translator of this notebook for longer, with dropout. These are the recipes of the
package:
"""

# %%
for file in sorted((ROOT / "recipes").glob("*.py")):
    print(f"{file.name:<26}{ast.get_docstring(ast.parse(file.read_text(encoding='utf-8'))).splitlines()[0]}")

# %% [markdown]
r"""
## Attention Visualizations

The paper's appendix draws what single heads of a trained model attend to: lines from each word to the words that it
attends to, in a colour for each head, thicker for larger weights. A word's weight is the sum over its sub-words
(`merge_words`). These are pictures of one sentence each. They do not prove what a head is for.

### Figure 3: long-distance dependencies

The paper follows the verb "making" in layer 5 of 6 of the encoder: several heads attend to "more difficult", many
words away. The cell finds the longest reach of our encoder instead of choosing a word: the heaviest line between
words that are at least four places apart. It draws all heads of its layer for the word that attends. Do not expect
the reach of the paper's model: ours has two layers, and short sentences.
"""

# %%
apart = merge_words(read_attention(model, tokenizer, "Can the old teacher read a book in the garden?"))
within = len(apart.source) - 2  # without the question mark and the end
distances = np.abs(np.subtract.outer(range(within), range(within)))
far_lines = apart.encoder[:, :, :within, :within] * (distances >= 4)  # [layers, heads, words, words]
layer_of, head_of, from_word, to_word = map(int, np.unravel_index(far_lines.argmax(), far_lines.shape))
print(f'layer {layer_of + 1}, head {head_of + 1}: "{apart.source[from_word]}" gives "{apart.source[to_word]}"')
print(f"{far_lines.max():.2f} of its attention, over {abs(from_word - to_word)} places")
draw(draw_attention(apart, kind="encoder", layer=layer_of + 1, words=[apart.source[from_word]]).figure)

# %% [markdown]
r"""
### Figure 4: anaphora

What does "she" refer to? The paper shows two heads of layer 5 that attend sharply from "its" to the noun it stands
for. The table says for each head of our encoder what "she" attends to most, and with which weight. Do not expect
"woman": our model needs no such head, since "she" is "sie" in German whoever it is.
"""


# %%
def most_attended(weights: AttentionWeights, word: str) -> None:
    """For each head of the encoder, the word that a word attends to most."""
    place = weights.source.index(word)
    rows = []
    for layer, of_layer in enumerate(weights.encoder, start=1):  # [heads, words, words]
        found_words = [f"{weights.source[head.argmax()]} ({head.max():.2f})" for head in of_layer[:, place]]
        rows.append([layer, *found_words])
    table(["layer", *(f"head {number}" for number in range(1, len(rows[0])))], *rows)


anaphora = merge_words(read_attention(model, tokenizer, "Because the woman is tired, she can not sleep."))
most_attended(anaphora, "she")
draw(draw_attention(anaphora, kind="encoder", words=["she"]).figure)

# %% [markdown]
r"""
### Figure 5: heads with different tasks

The paper shows two heads of layer 5 that clearly do different things. The **entropy** of a head's weights says how many
words it looks at, on average: 0 bits are one word, 3 bits are eight words equally. The cell draws the sharpest and the
broadest head of our encoder.
"""

# %%
entropies = attention_entropy(apart)["encoder"][0]  # [layers, heads], in bits
for name, chosen in (("sharpest", entropies.argmin()), ("broadest", entropies.argmax())):
    layer_at, head_at = np.unravel_index(chosen, entropies.shape)
    print(f"the {name}: layer {layer_at + 1}, head {head_at + 1}, {entropies[layer_at, head_at]:.2f} bits")
    draw(draw_attention(apart, kind="encoder", layer=int(layer_at) + 1, heads=[int(head_at) + 1]).figure)

# %% [markdown]
r"""
Last, what each word of the translation looks at in the source while it is predicted: the encoder-decoder attention of
the decoder's last layer, with all heads. Lines that cross the others show where German has another order than English.
"""

# %%
draw(draw_attention(apart, kind="cross").figure)
print(f"All cells together took {time.process_time():.0f} seconds of processor time.")
