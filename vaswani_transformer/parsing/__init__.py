"""Section 6.3 of the paper: English constituency parsing."""
