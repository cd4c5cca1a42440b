"""Translation of lists and files (6.1): in batches, on all processes, in shards; the options of recipes that decode."""
