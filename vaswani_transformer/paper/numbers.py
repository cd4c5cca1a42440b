"""Numbers of the paper: scores (Table 3), trainings (Table 2, 5.2) and hyper-parameters (5)."""

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

# Steps and hours of training (5.2) on 8 P100 GPUs, each of which sustains 9.5 TFLOPS (footnote 5).
PAPER_TRAININGS = {"base": (100_000, 12.0), "big": (300_000, 3.5 * 24)}
PAPER_DEVICES = 8
PAPER_RATE = 9.5e12
PAPER_BATCH_TOKENS = 25_000  # source tokens, and as many target tokens (5.1)

# F1 on section 23 of the Wall Street Journal (Table 4): parser, what it was trained on, F1.
PAPER_PARSERS = [
    ("Vinyals & Kaiser et al. (2014)", "WSJ only", 88.3),
    ("Petrov et al. (2006)", "WSJ only", 90.4),
    ("Zhu et al. (2013)", "WSJ only", 90.4),
    ("Dyer et al. (2016)", "WSJ only", 91.7),
    ("Transformer, 4 layers, of the paper", "WSJ only", 91.3),
    ("Zhu et al. (2013)", "semi-supervised", 91.3),
    ("Huang & Harper (2009)", "semi-supervised", 91.3),
    ("McClosky et al. (2006)", "semi-supervised", 92.1),
    ("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    ("Transformer, 4 layers, of the paper", "semi-supervised", 92.7),
    ("Luong et al. (2015)", "multi-task", 93.0),
    ("Dyer et al. (2016)", "generative", 93.3),
]

# Hyper-parameters of parsing as a model card prints them (6.3); "code" is its authors', where the paper says nothing.
PAPER_PARSING_SETTINGS = {
    "encoder_layers": "4",
    "decoder_layers": "4",
    "d_model": "1024",
    "d_ff": "code: 2048 (semi-supervised: 4096)",
    "num_heads": "code: 8 (semi-supervised: 16)",
    "d_k": "code: 128 (semi-supervised: 64)",
    "d_v": "code: 128 (semi-supervised: 64)",
    "dropout": "code: 0.2 (semi-supervised: 0.1)",
    "attention_dropout": "code: 0.2 (semi-supervised: 0)",
    "label_smoothing": "0.1",
    "vocab_size": "16,000 (semi-supervised: 32,000)",
    "source_tokens": "25,000",
    "target_tokens": "25,000",
    "warmup_steps": "code: 16,000 (semi-supervised: 4,000)",
    "learning_rate_factor": "code: 0.5",
    "average_last": "5",
    "steps": "not stated",
    "num_beams": "21",
    "length_penalty": "0.3",
    "max_new_tokens_over_source": "300",
}

# Hyper-parameters of translation as a model card prints them (Table 3; sections 5.1, 5.3, 5.4 and 6.1).
PAPER_SETTINGS = {
    "encoder_layers": "6",
    "decoder_layers": "6",
    "d_model": "512 (big: 1024)",
    "d_ff": "2048 (big: 4096)",
    "num_heads": "8 (big: 16)",
    "d_k": "64",
    "d_v": "64",
    "dropout": "0.1 (big: 0.3)",
    "label_smoothing": "0.1",
    "vocab_size": "about 37,000 (en-fr: 32,000)",
    "source_tokens": "25,000",
    "target_tokens": "25,000",
    "warmup_steps": "4,000",
    "learning_rate_factor": "1",
    "average_last": "5 (big: 20)",
    "steps": "100,000 (big: 300,000)",
}
