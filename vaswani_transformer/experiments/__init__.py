"""Table 3 of the paper: a sweep over its rows, their comparison with each other and with the paper, the report."""
