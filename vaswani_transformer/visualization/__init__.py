"""The paper's appendix and its plots: attention as lines between words, positions, learning rate, entropy of heads."""
