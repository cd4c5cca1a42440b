"""gradio: the page of recipes/demo_app.py, and gradio's own pipeline page."""

import gradio
import pytest
from gradio_client import Client
from helpers import free_port
from transformers import pipeline

from vaswani_transformer.visualization.demo import demo_page


def test_page(model, tokenizer, pairs, translate):
    """The page of demo_app.py, called through gradio_client"""
    page = demo_page(model, tokenizer, "demo")
    _, address, _ = page.launch(server_port=free_port(), prevent_thread_lock=True, quiet=True)
    try:
        client = Client(address, verbose=False)
        found = [client.predict(source, api_name="/translate")[0] for source, _ in pairs[:4]]
    finally:
        page.close()
    assert found == translate(model)[:4]


def test_from_pipeline(model, tokenizer):
    """gradio.Interface.from_pipeline of pipeline("translation")"""
    with pytest.raises(ValueError, match="pipeline"):
        gradio.Interface.from_pipeline(pipeline("translation", model=model, tokenizer=tokenizer))
