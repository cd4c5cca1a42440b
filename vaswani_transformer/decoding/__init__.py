"""Translation of lists and files (6.1), in batches and shards, on all processes."""
