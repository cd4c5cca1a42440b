"""Floating point operations of training, counted from the shapes of a batch; a multiply-add is two."""

from transformers import PreTrainedConfig


def training_flops(config: PreTrainedConfig, sentences: int, source_length: int, target_length: int) -> float:
    """Operations of the matrix products of a forward and a backward pass over a batch.

    The backward pass takes twice as many as the forward pass: the gradients of both factors. Recomputation by gradient
    checkpointing is not counted, because it adds nothing to the training. The lengths are tokens of a sentence, padding
    included.
    """
    encoder_layer = _attention_multiply_adds(config, source_length, source_length)
    encoder_layer += 2 * source_length * config.d_model * config.d_ff
    decoder_layer = _attention_multiply_adds(config, target_length, target_length)
    decoder_layer += _attention_multiply_adds(config, target_length, source_length)
    decoder_layer += 2 * target_length * config.d_model * config.decoder_d_ff
    logits = target_length * config.d_model * config.output_vocab_size
    multiply_adds = config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + logits
    return 3.0 * 2.0 * sentences * multiply_adds


def _attention_multiply_adds(config: PreTrainedConfig, target_length: int, source_length: int) -> int:
    """Multiply-adds of multi-head attention (3.2.2) in a sentence: `target_length` queries, `source_length` keys."""
    heads = config.num_heads * (config.d_k + config.d_v)  # W^Q and W^K, W^V and W^O are as wide
    projections = (target_length + source_length) * config.d_model * heads
    scores_and_values = target_length * source_length * heads
    return projections + scores_and_values
