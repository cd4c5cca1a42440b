"""Installs the package: `pip install .`, or `pip install -e ".[dev]" -c constraints.txt` to work on it."""

from pathlib import Path

from setuptools import find_packages, setup


EXPORT = ["ctranslate2>=4.8.5,<5"]  # recipes/export.py
ONNX = ["onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20"]  # recipes/export.py --to onnx
TRACKING = ["tensorboard>=2.18"]  # recipes/train_wmt.py --report_to tensorboard
CONVERT = ["sentencepiece>=0.2", "sacremoses>=0.1"]  # recipes/convert.py: tokenizers of the models
PARSING = ["nltk>=3.9.1"]  # recipes/train_parsing.py: treebanks
DEMO = ["gradio>=6.31,<7"]  # recipes/demo_app.py
EXECUTION = ["ipykernel>=6.29", "nbclient>=0.10"]  # tests/test_paper_notebook.py
NOTEBOOK = ["jupyterlab>=4.4", *EXECUTION, *PARSING]  # recipes/the_paper_in_code.ipynb
BROWSER = ["playwright>=1.50"]  # tests/test_explorer.py: drives a Chromium that is installed

setup(
    name="vaswani_transformer",
    version="0.2.0",
    description='The model of "Attention Is All You Need" for the Hugging Face stack',
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*find_packages(include=["vaswani_transformer", "vaswani_transformer.*"]), "vaswani_transformer.recipes"],
    py_modules=["vaswani_command"],
    package_dir={"vaswani_transformer.recipes": "recipes"},
    package_data={
        "vaswani_transformer": [
            "py.typed",
            "data/phrasebook.tsv.bz2",
            "data/supplement.json",
            "data/supplement.tsv",
            "data/public_corpora.json",
            "data/*.digests",
            "parsing/*.md.jinja",
            "parsing/demo/*.mrg.xz",
            "runs/*.md.jinja",
            "visualization/*.jinja",
            "visualization/*.css",
            "visualization/*.js",
        ],
        "vaswani_transformer.recipes": ["configs/*.yaml", "launch/*.yaml", "reference/*.md"],
    },
    entry_points={"console_scripts": ["vaswani = vaswani_command:main"]},
    install_requires=[
        "torch>=2.6",
        "transformers>=5.15,<6",
        "tokenizers>=0.22.1",
        "datasets>=4.0",
        "evaluate>=0.4.6",
        "filelock>=3.30",
        "accelerate>=1.14",
        "safetensors>=0.8",
        "huggingface_hub>=1.33",
        "sacrebleu>=2.4",
        "sacremoses>=0.1",
        "sentencex>=1.0.32,<2",
        "langcodes>=3.5",
        "language_data>=1.3",
        "regex>=2024.4.16",
        "jinja2>=3.1",
        "matplotlib>=3.8",
        "rich>=13.8",
        "pyyaml>=6.0",
        "numpy>=1.26",
        "scipy>=1.12",
        "pyarrow>=15.0",
        "tqdm>=4.66.3",
        "defusedxml>=0.7",
    ],
    extras_require={
        "export": EXPORT,
        "onnx": ONNX,
        "convert": CONVERT,
        "tracking": TRACKING,
        "parsing": PARSING,
        "demo": DEMO,
        "notebook": NOTEBOOK,
        "dev": [
            "pytest>=8.2",
            "pytest-random-order>=1.2",
            "pytest-xdist>=3.6.1",
            "hypothesis>=6.100",
            "parameterized>=0.9",  # by the tests of transformers
            "ruff>=0.12",
            "mypy>=1.15",
            "types-PyYAML>=6.0",
            *EXPORT,
            *ONNX,
            *CONVERT,
            *TRACKING,
            *PARSING,
            *DEMO,
            *BROWSER,
            *EXECUTION,
        ],
    },
)
