"""The paper in code: the notebook follows the paper, is stored as it ran, and runs."""

import ast
import re

import nbformat
import pytest
from helpers import REPOSITORY
from nbclient import NotebookClient


NOTEBOOK = REPOSITORY / "recipes" / "the_paper_in_code.ipynb"
# Sections, tables and figures of the paper, in its order. Those with sub-sections may have no code of their own.
OUTLINE = [
    "1 Introduction",
    "2 Background",
    "3 Model Architecture",
    "Figure 1",
    "3.1 Encoder and Decoder Stacks",
    "3.2 Attention",
    "3.2.1 Scaled Dot-Product Attention",
    "3.2.2 Multi-Head Attention",
    "Figure 2",
    "3.2.3 Applications of Attention in our Model",
    "3.3 Position-wise Feed-Forward Networks",
    "3.4 Embeddings and Softmax",
    "3.5 Positional Encoding",
    "4 Why Self-Attention",
    "Table 1",
    "5 Training",
    "5.1 Training Data and Batching",
    "5.2 Hardware and Schedule",
    "5.3 Optimizer",
    "5.4 Regularization",
    "6 Results",
    "6.1 Machine Translation",
    "Table 2",
    "6.2 Model Variations",
    "Table 3",
    "6.3 English Constituency Parsing",
    "Table 4",
    "7 Conclusion",
    "Attention Visualizations",
    "Figure 3",
    "Figure 4",
    "Figure 5",
]
WITHOUT_CODE = {"4 Why Self-Attention", "5 Training", "6 Results", "6.2 Model Variations", "Attention Visualizations"}


@pytest.fixture
def stored() -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_headings_are_those_of_the_paper_and_have_code(stored):
    headings: dict[str, int] = {}  # cells of code by heading
    heading = ""
    for cell in stored.cells:
        if cell.cell_type == "markdown":
            for title in re.findall(r"^#+ (.*)$", cell.source, re.M):
                heading = re.sub(r"^((?:Table|Figure) \d): .*", r"\1", title)
                assert heading not in headings
                headings[heading] = 0
        elif heading:
            headings[heading] += 1
    assert [each for each in headings if not each.startswith("It learns")] == OUTLINE
    assert {each for each, cells in headings.items() if not cells} <= WITHOUT_CODE


def test_answers_of_exercises_are_folded_with_their_code_and_results(stored):
    places = [place for place, cell in enumerate(stored.cells) if "**Exercise.**" in cell.source]
    assert len(places) == 9
    for place in places:
        assert "\n<details><summary>Answer</summary>\n\n" in stored.cells[place].source
        answer = stored.cells[place + 1]
        assert answer.metadata.jupyter.source_hidden
        assert all(output.data["text/markdown"].startswith("<details>") for output in answer.outputs)


def test_the_notebook_is_stored_as_it_ran_with_pictures_and_nothing_of_the_machine(stored):
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, 1 + len(cells))]
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 15
    for output in outputs:
        assert output.output_type in ("stream", "display_data")
        assert output.get("name") != "stderr"
        assert not re.search(r"/(?:tmp|home|root|work|Users)/", output.get("text", ""))
        for path in re.findall(r"^`.*` in `(.*)`:$", output.get("data", {}).get("text/markdown", ""), re.M):
            assert (REPOSITORY / path).is_file()


def test_what_it_imports_exists(stored):
    first = next(cell for cell in stored.cells if cell.cell_type == "code")
    imports = [node for node in ast.parse(first.source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(imports) > 40
    exec(compile(ast.Module(imports, []), NOTEBOOK.name, "exec"), {})


@pytest.mark.notebook
def test_the_notebook_runs_and_its_answers_are_right(stored, tmp_path, monkeypatch):
    """Assertions in its cells check the answers."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    NotebookClient(stored).execute(cwd=str(NOTEBOOK.parent))
    assert not [*tmp_path.glob("tmp*")]  # it leaves nothing behind
