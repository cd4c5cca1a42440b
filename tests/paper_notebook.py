"""`make notebook-outputs`: runs recipes/the_paper_in_code.py, and stores it and its outputs as a notebook beside it."""

from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient


SOURCE = Path(__file__).parents[1] / "recipes" / "the_paper_in_code.py"
NOTEBOOK = SOURCE.with_suffix(".ipynb")
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}  # for Colab, which also asks for a title, and Jupyter


def without_outputs() -> nbformat.NotebookNode:
    """The notebook that the source describes."""
    notebook = jupytext.read(SOURCE)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # else another at each call
        cell.metadata = FOLDED if cell.source.startswith("# @title") else {}
    return notebook


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run all cells, in a process whose folder is the notebook's, as a browser does."""
    NotebookClient(notebook, record_timing=False, coalesce_streams=True).execute(cwd=str(SOURCE.parent))


if __name__ == "__main__":
    made = without_outputs()
    execute(made)
    for cell in made.cells:
        if cell.cell_type == "code":  # without progress bars and warnings
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(made, NOTEBOOK)
