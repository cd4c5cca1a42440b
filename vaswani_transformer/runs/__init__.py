"""Training runs: their directory, steps, record, scores, card and push to the Hub."""
