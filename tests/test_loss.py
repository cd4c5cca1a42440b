"""Label smoothing (5.4) against Szegedy's definition, computed token by token in float64."""

import math

import pytest
import torch
from torch.nn import functional as F

from vaswani_transformer.training.loss import LabelSmoothedLoss


VOCABULARY = 11


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(3, 5, VOCABULARY) * 3


@pytest.fixture
def labels() -> torch.Tensor:
    """Sentences of 5, 3 and 1 tokens, one of which is the padding token's id, which is a token like any other here."""
    labels = torch.randint(VOCABULARY, (3, 5))
    labels[1, 3:] = labels[2, 1:] = -100
    labels[0, 2] = 0
    return labels


def szegedy_sum(logits: torch.Tensor, labels: torch.Tensor, epsilon: float) -> float:
    """Sum over tokens of the cross-entropy with `q(k) = (1 - epsilon) [k == label] + epsilon / K`."""
    total = 0.0
    for scores, label in zip(logits.reshape(-1, VOCABULARY).tolist(), labels.flatten().tolist(), strict=True):
        if label == -100:
            continue
        log_partition = math.log(sum(math.exp(score) for score in scores))
        for k, score in enumerate(scores):
            q = (1 - epsilon) * (k == label) + epsilon / VOCABULARY
            total -= q * (score - log_partition)
    return total


def outputs(logits: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"logits": logits}


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.6])
def test_the_loss_equals_the_definition(logits, labels, epsilon):
    smoothed = LabelSmoothedLoss(epsilon)
    loss = smoothed(outputs(logits), labels)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(szegedy_sum(logits, labels, epsilon) / 9, rel=1e-6)
    smoothed(outputs(logits), labels)
    assert smoothed.take_likelihood().item() == pytest.approx(2 * szegedy_sum(logits, labels, 0.0) / 9, rel=1e-6)
    assert smoothed.take_likelihood().item() == 0


def test_loss_and_gradient_equal_those_of_pytorch(logits, labels):
    theirs, ours = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected = F.cross_entropy(theirs.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=0.1) / 9
    loss = LabelSmoothedLoss(0.1)(outputs(ours), labels)
    (3 * loss).backward()
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_second_backward_pass_is_an_error_not_a_wrong_gradient(logits, labels):
    """The gradient is written over the log-probabilities, so that there is none left to compute it from."""
    loss = LabelSmoothedLoss(0.1)(outputs(logits.requires_grad_()), labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("count", [20, torch.tensor(20), torch.tensor(20.0)])
def test_the_loss_is_divided_by_the_global_number_of_tokens(logits, labels, count):
    loss = LabelSmoothedLoss(0.1)(outputs(logits), labels, num_items_in_batch=count)
    assert loss.item() == pytest.approx(szegedy_sum(logits, labels, 0.1) / 20, rel=1e-6)


def test_without_gradients_the_loss_is_the_plain_likelihood(logits, labels):
    with torch.no_grad():
        loss = LabelSmoothedLoss(0.1)(outputs(logits), labels)
    assert loss.item() == pytest.approx(szegedy_sum(logits, labels, 0.0) / 9, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_float32(logits, labels, dtype):
    rounded = logits.to(dtype)
    loss = LabelSmoothedLoss(0.1)(outputs(rounded), labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(szegedy_sum(rounded, labels, 0.1) / 9, rel=1e-6)


def test_a_stock_trainer_whose_collator_does_not_know_the_model_is_told_what_to_do(tiny):
    """The stock trainer hides the labels from the model, so the collator must make the decoder's inputs."""
    with pytest.raises(
        ValueError, match=r"give either decoder_input_ids or .*DataCollatorForSeq2Seq\(tokenizer, model="
    ):
        tiny(torch.tensor([[7, 8, 1]]))
