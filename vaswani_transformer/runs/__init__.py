"""What a training run is: its options, directory and steps, its record, its scores, its card, its push to the Hub."""
