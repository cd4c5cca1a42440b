"""What the paper prints: the numbers of its tables, and its accounting of costs (Table 2)."""
