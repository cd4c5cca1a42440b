"""Table 3 of the paper: the sweep over its rows, the comparison of scores and costs (Table 2), the report."""
