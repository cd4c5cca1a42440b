"""Table 3 of the paper: the sweep over its rows, their comparison with the paper, the report."""
