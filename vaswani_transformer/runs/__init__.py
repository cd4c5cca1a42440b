"""What a training run is: its options, directory, steps, record, scores, card and push to the Hub."""
