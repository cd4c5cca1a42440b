"""Pictures of attention, as in the paper's appendix, and pages to explore a translation and to try a model."""
