"""Linear layers by oneDNN compute what PyTorch's do, with their gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vaswani_transformer.training.products import OneDnnLinear, OneDnnProducts


pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


@pytest.mark.parametrize("shape", [(700, 400), (7, 100, 400)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_and_its_gradients_are_those_in_float64(shape, has_bias):
    inputs, weight = torch.randn(shape, requires_grad=True), torch.randn(400, 400, requires_grad=True)
    bias = torch.randn(400, requires_grad=True) if has_bias else None
    given = inputs, weight, bias
    exact = [None if tensor is None else tensor.detach().double().requires_grad_() for tensor in given]
    with OneDnnProducts():
        actual = F.linear(*given)
    assert type(actual.grad_fn).__name__.startswith(OneDnnLinear.__name__)
    expected = F.linear(*exact)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=3e-4)
    gradient = torch.randn_like(actual)
    actual.backward(gradient)
    expected.backward(gradient.double())
    for tensor, reference in zip(given[: 2 + has_bias], exact, strict=False):
        torch.testing.assert_close(tensor.grad.double(), reference.grad, rtol=0, atol=3e-4)


def test_small_products_are_left_alone():
    with OneDnnProducts():
        actual = F.linear(torch.randn(5, 24), torch.randn(40, 24, requires_grad=True), None)
    assert not type(actual.grad_fn).__name__.startswith(OneDnnLinear.__name__)


def test_frozen_weights_and_other_types_are_left_alone():
    layer = nn.Linear(400, 400).requires_grad_(False)
    inputs, weight = torch.randn(700, 400, requires_grad=True), layer.weight.clone()
    with OneDnnProducts():
        layer(inputs).sum().backward()
        half = layer.bfloat16()(inputs.bfloat16())
    torch.testing.assert_close(inputs.grad, weight.sum(0).expand(700, 400), rtol=0, atol=3e-4)
    assert layer.weight.grad is None
    assert half.dtype == torch.bfloat16
