"""Small models and sources for tests of the search."""

import torch

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration


EOS = 1
SOURCES = [[7, 8, 9, 4, 5, 1], [7, 1], [30, 4, 1], [12, 31, 22, 39, 17, 6, 8, 1], [5, 5, 5, 5, 1], [1], [20, 13, 1]]


def as_batch(sources: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, sources))
    return torch.tensor([source + [0] * (longest - len(source)) for source in sources])


def lively(vocab_size: int, seed: int = 0, **changes: int) -> VaswaniForConditionalGeneration:
    """A model with weights so large that hypotheses differ."""
    torch.manual_seed(seed)
    sizes = {"d_model": 8, "d_ff": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, **changes}
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=vocab_size, **sizes)).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter)
    return model


def talkative() -> VaswaniForConditionalGeneration:
    """A lively model whose sentences end at different lengths, as a trained one's do; the seed is one that does it."""
    model = lively(40, seed=63, d_model=16, d_ff=32, decoder_layers=2)
    last = model.model.decoder.layers[-1].feed_forward_residual.norm
    model.model.shared.weight.data[EOS] += 0.45 * last.bias.data
    last.weight.data *= 0.4
    model.generation_config.max_new_tokens_over_source = 8
    return model
