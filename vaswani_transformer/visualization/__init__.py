"""Pictures of attention, as in the paper's appendix, and of the model; a page to explore one translation."""

from .explorer import explore
from .figures import attention_view, entropy_view, positions_view


__all__ = ["attention_view", "entropy_view", "explore", "positions_view"]
