"""Training runs: their options, directory, steps, record, scores, card and push to the Hub."""
