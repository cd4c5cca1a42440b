"""Conversion from other toolkits: models of transformers, and fairseq's."""
