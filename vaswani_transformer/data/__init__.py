"""Section 5.1 of the paper: sentence pairs, their cleaning, and batches of them."""
