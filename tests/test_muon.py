"""Muon, beside a singular value decomposition, torch's own Muon and torch's Adam."""

from copy import deepcopy

import pytest
import torch

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniTrainer
from vaswani_transformer.options.training import VaswaniTrainingArguments
from vaswani_transformer.training.muon import Muon, orthogonalize, parameter_groups


SHAPES = [(24, 24), (24, 24), (48, 24), (24, 48)]


def groups(
    matrices: list[torch.nn.Parameter], others: list[torch.nn.Parameter], weight_decay: float = 0.0
) -> list[dict[str, object]]:
    return [
        {"params": weights, "is_matrix": is_matrix, "weight_decay": weight_decay}
        for weights, is_matrix in ((matrices, True), (others, False))
    ]


def parameters(shapes: list[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def copies(weights: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(each.detach().clone()) for each in weights]


@pytest.mark.parametrize("shape", [(24, 24), (48, 24), (24, 96)])
def test_singular_values_become_about_one_and_singular_vectors_stay(shape):
    matrices = torch.randn(3, *shape) * torch.tensor([1e-4, 1.0, 1e4])[:, None, None]
    for before, after in zip(matrices, orthogonalize(matrices), strict=True):
        left, values, right = torch.linalg.svd(before, full_matrices=False)
        found = left.T @ after @ right.T  # diagonal, if the singular vectors are the same
        large = values > values.norm() / 30
        assert found.diagonal()[large].min() > 0.65
        assert (found.diagonal()[~large] > 20 * values[~large] / values.norm()).all()
        assert found.diagonal().max() < 1.25
        torch.testing.assert_close(found, found.diagonal().diag(), atol=1e-4, rtol=0.0)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_matrices_go_as_with_the_muon_of_torch(weight_decay):
    ours = parameters(SHAPES)
    theirs = copies(ours)
    optimizer = Muon(groups(ours, [], weight_decay), lr=0.1)
    settings = {"lr": 0.1, "weight_decay": weight_decay, "momentum": 0.95, "ns_steps": 3}
    reference = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(4):
        before = [each.detach().clone() for each in ours]
        for mine, other in zip(ours, theirs, strict=True):
            other.data.copy_(mine.data)
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.step()
        reference.step()
        for start, mine, other in zip(before, ours, theirs, strict=True):
            # torch computes the iterations in bfloat16, which has 8 bits.
            assert (mine - other).norm() < 0.06 * (other - start).norm()


def test_all_else_goes_as_with_adam():
    ours = parameters([(7, 5), (5,)])
    theirs = copies(ours)
    optimizer = Muon(groups(parameters(SHAPES), ours), lr=0.1)
    reference = torch.optim.Adam(theirs, lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.step()
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("copied", [lambda optimizer: optimizer, deepcopy])
def test_a_gradient_scaler_skips_the_whole_step_also_of_a_copy(copied):
    """A fused Adam would do the scaler's work itself, for its own parameters alone."""
    optimizer = copied(Muon(groups(*([torch.nn.Parameter(torch.ones(3, 2))] for _ in range(2))), lr=0.1))
    scaler = torch.amp.GradScaler("cpu")
    trained = [weights for group in optimizer.param_groups for weights in group["params"]]
    for gradient, is_skipped in ((float("inf"), True), (1.0, False)):
        for weights in trained:
            weights.grad = scaler.scale(torch.full_like(weights, gradient))
        scaler.step(optimizer)
        scaler.update()
        assert all(bool((weights == 1).all()) == is_skipped for weights in trained)
        assert all(bool(weights.isfinite().all()) for weights in trained)


@pytest.mark.parametrize("is_tied", [True, False])
def test_embeddings_and_the_softmax_are_no_matrices_of_layers(config, is_tied):
    config.tie_word_embeddings = is_tied
    model = VaswaniForConditionalGeneration(config)
    model.model.encoder.layers[0].feed_forward.fc1.weight.requires_grad = False  # as adapters do
    matrices, others = set(), set()
    for group in parameter_groups(model, 0.1, ()):
        (matrices if group["is_matrix"] else others).update(map(id, group["params"]))
    of_layers = [
        weights
        for name, weights in model.named_parameters()
        if "layers." in name and weights.dim() == 2 and weights.requires_grad
    ]
    assert matrices == {id(weights) for weights in of_layers}
    assert matrices | others == {id(weights) for weights in model.parameters() if weights.requires_grad}
    assert not matrices & others


def test_the_same_parameters_decay_as_with_the_optimizer_of_the_trainer(tmp_path, tiny, tokenizer):
    decaying = []
    for muon in (False, True):
        args = VaswaniTrainingArguments(str(tmp_path), muon=muon, weight_decay=0.1, use_cpu=True)
        optimizer = VaswaniTrainer(tiny, args, processing_class=tokenizer).create_optimizer()
        decaying.append({id(w) for group in optimizer.param_groups if group["weight_decay"] for w in group["params"]})
    assert decaying[0] == decaying[1]
    assert 0 < len(decaying[0]) < len([*tiny.parameters()])


@pytest.mark.parametrize(
    ("options", "launcher", "message"),
    [
        ({"fsdp": True}, "false", "fsdp, deepspeed: averaging and the search need"),
        ({}, "true", "fsdp, deepspeed: averaging and the search need"),
        ({"muon": True, "optim": "adafactor"}, "false", "optim: .*muon is the optimizer"),
    ],
)
def test_sharded_models_and_two_optimizers_are_refused(tmp_path, monkeypatch, options, launcher, message):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", launcher)
    with pytest.raises(ValueError, match=f"^{message}"):
        VaswaniTrainingArguments(str(tmp_path), use_cpu=True, **options)
