"""A page to try a model on, and the folder of a Space that shows it."""
