"""Options of the recipes, and the YAML file of `--config`."""
