"""A push from a real training run, read back in fresh processes, with and without this package."""

import json
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import BOX, REPOSITORY, TRAIN_WMT, option_words, recipe_module, run_python, write_splits
from hub_server import HubServer, Repository
from pyarrow import parquet
from safetensors.torch import load, load_file

from vaswani_transformer.data.supplement import SPLIT_SIZES, supplement
from vaswani_transformer.options.parser import RecipeParser


pytestmark = pytest.mark.system
SIZES = "--vocab_size 320 --encoder_layers 1 --decoder_layers 1 --d_model 32 --d_ff 32 --num_proc 1"
STEPS = "--max_steps 4 --save_steps 2 --warmup_steps 4 --logging_steps 2 --eval_strategy no"

# Does not wait between the client's attempts.
IMPATIENT = """
import runpy, sys, time
time.sleep = lambda seconds: None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# What a user types; without the package the import of it fails, as it does where it is not installed.
TRANSLATE = """
import sys
arguments = sys.argv[1:]
if "package" in arguments:
    import vaswani_transformer
else:
    sys.modules["vaswani_transformer"] = None
import json
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

name = arguments[0]
trust = {"trust_remote_code": True} if "trust" in arguments else {}
text = ["The old man reads a book.", "", "Dogs!"]
tokenizer = AutoTokenizer.from_pretrained(name, **trust)
model = AutoModelForSeq2SeqLM.from_pretrained(name, **trust)
inputs = tokenizer(text[0], return_tensors="pt")
translator = pipeline("translation_en_to_de", model=name, **trust)
known = "translation" if name.startswith("/") else None
results = {
    "generate": tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True),
    "greedy": model.generate(**inputs, num_beams=1)[0].tolist(),
    "sample": model.generate(**inputs, num_beams=1, do_sample=True, top_k=1)[0].tolist(),
    "translations": [row["translation_text"] for row in translator(text)],
    # The Hub knows the task of a repository.
    "no task": [row["translation_text"] for row in pipeline(known, name, **trust)(text)],
    "objects": [row["translation_text"] for row in pipeline("translation", model=model, tokenizer=tokenizer)(text)],
    "model": type(AutoModel.from_pretrained(name, **trust)).__name__,
    "module": type(model).__module__,
}
if "save" in arguments:
    translator.save_pretrained(arguments[1])
print(json.dumps(results))
"""


def train(hub: HubServer, folder: Path, token: str | None, *options: str) -> subprocess.CompletedProcess:
    """Run the recipe on a small corpus; all files are given by their full names."""
    corpora = option_words(write_splits(folder, train=300, validation=6, test=6))
    config = REPOSITORY / "recipes" / "configs" / "demo.yaml"
    words = ["--config", config, "--output_dir", folder / "out", *SIZES.split(), *STEPS.split(), *corpora]
    return hub.run(IMPATIENT, TRAIN_WMT, *words, "--push_to_hub", *options, folder=folder, token=token)


def translate(hub: HubServer, name: str, folder: Path, *options: str) -> dict:
    result = hub.run(TRANSLATE, name, *options, folder=folder, token=None)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def pushed(hub, tmp_path_factory) -> SimpleNamespace:
    """A model that a real run has trained, scored and pushed, as the package itself translates from it by name."""
    folder = tmp_path_factory.mktemp("pushed")
    result = train(
        hub, folder, None, "--hub_model_id", "user/en-de", "--license", "cc-by-4.0", "--hub_token", "hf_right"
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return SimpleNamespace(out=folder / "out", folder=folder, expected=translate(hub, "user/en-de", folder, "package"))


def test_a_run_pushes_model_code_and_card_only(hub, pushed):
    files = hub.repositories["user/en-de"].files
    weights = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    names = "configuration modeling attention keywords generation search_options beam_search step_decoder pipeline "
    names += "languages sentences scores translation"
    code = {f"{name}_vaswani.py" for name in names.split()}
    run = {"README.md", "all_results.json", ".gitattributes"}
    run |= {"learning_curve.png", "bleu_by_source_length.png", "robustness.png"}
    translations = {f"translations.{split}.txt" for split in ("validation", "test", "test_last_checkpoint")}
    assert weights | code <= files.keys() <= weights | code | run | translations
    for name in files.keys() - {".gitattributes"}:
        assert (pushed.out / name).read_bytes() == files[name]
    for name, content in files.items():  # recipe, configuration, corpora and output were given by their full names
        assert b"hf_right" not in content, f"{name} contains the token"
        for path in (pushed.folder, REPOSITORY, Path.home(), sys.prefix):
            assert str(path).encode() not in content, f"{name} contains {path}"


def test_translates_without_the_package_and_saves_all_that_is_needed_without_network(hub, pushed, tmp_path):
    """A directory saved by remote code has the code again, and loads offline."""
    copy = tmp_path / "copy"
    online = translate(hub, "user/en-de", pushed.folder, str(copy), "trust", "save")
    offline = {**hub.environment(None), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    result = run_python(["-c", TRANSLATE, copy, "trust"], environment=offline, folder=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert online["module"].startswith("transformers_modules.")
    for results in (online, json.loads(result.stdout.splitlines()[-1])):
        assert {**results, "module": ""} == {**pushed.expected, "module": ""}


def test_the_package_runs_its_own_code_and_no_others(pushed):
    assert pushed.expected["module"] == "vaswani_transformer.model.modeling_vaswani"
    assert pushed.expected["translations"] == pushed.expected["no task"] == pushed.expected["objects"]
    assert pushed.expected["translations"][0] == pushed.expected["generate"]
    assert pushed.expected["translations"][1] == ""


def test_models_tokenizers_and_trainers_push_by_transformers_own_methods_where_they_may_write(hub, pushed):
    """`create_repo` alone does not ask whether a repository that exists already may be written."""
    closed = ["closed/new", "user/closed", "not a name"]
    hub.repositories["user/closed"] = Repository("user/closed")
    hub.read_only = {"closed", "user/closed"}
    script = f"""
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from vaswani_transformer import VaswaniTrainer, VaswaniTrainingArguments
from vaswani_transformer.runs.push import prepare_repository
model = AutoModelForSeq2SeqLM.from_pretrained({str(pushed.out)!r})
tokenizer = AutoTokenizer.from_pretrained({str(pushed.out)!r})
model.push_to_hub("user/parts")
tokenizer.push_to_hub("user/parts")
arguments = VaswaniTrainingArguments("trained", hub_model_id="user/trained", hub_private_repo=True, use_cpu=True)
VaswaniTrainer(model, arguments, processing_class=tokenizer).push_to_hub()
for name in {closed}:
    try:
        prepare_repository(name)
    except ValueError as error:
        print(error)
"""
    result = hub.run(script, folder=pushed.folder)
    hub.read_only = set()
    assert result.returncode == 0, result.stderr[-3000:]
    assert hub.repositories["user/trained"].private
    files = hub.repositories["user/en-de"].files
    needed = [name for name in files if name.endswith((".py", ".safetensors")) or name.startswith("tokenizer")]
    parts = hub.repositories["user/parts"].files
    assert {name: parts[name] for name in needed} == {name: files[name] for name in needed}
    for name, message in zip(closed, result.stdout.splitlines()[-len(closed) :], strict=True):
        assert message.startswith(f"hub_model_id: cannot write to {name} on the Hub")
        assert "hf auth login" in message


def test_pushing_a_model_again_as_the_readme_does_renews_its_code_alone(hub, pushed):
    files = hub.repositories["user/en-de"].files
    old = {name: b"old" if name.endswith(".py") else content for name, content in files.items()}
    hub.repositories["user/old"] = Repository("user/old", files=old)
    blocks = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("```")
    (snippet,) = (block.removeprefix("python") for block in blocks if "push_to_hub(" in block)
    result = hub.run(snippet.replace("user/en-de", "user/old"), folder=pushed.folder)
    assert result.returncode == 0, result.stderr[-3000:]
    assert hub.repositories["user/old"].files == files


def test_what_cannot_be_pushed_is_refused_before_training(hub, tmp_path):
    result = train(hub, tmp_path, "hf_wrong", "--hub_model_id", "user/en-de")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(
        "train_wmt.py: hub_model_id: cannot write to user/en-de on the Hub"
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"_run.json"}, "what is only begun"


def test_resuming_a_finished_run_pushes_it_after_an_interruption_and_nothing_else_of_its_directory(hub, pushed):
    for name in ("hub_token.json", "token", "notes.txt", "checkpoint-9/modeling_vaswani.py", "data/config.json"):
        (pushed.out / name).parent.mkdir(exist_ok=True)
        (pushed.out / name).write_text("secret", encoding="utf-8")
    model = (pushed.out / "model.safetensors").read_bytes()
    hub.objects.clear()  # else the Hub has the weights already
    hub.drop_uploads = True
    interrupted = train(hub, pushed.folder, "hf_right", "--resume", "--hub_model_id", "user/again")
    hub.drop_uploads = False
    assert interrupted.returncode == 1
    last = interrupted.stderr.splitlines()[-1]
    assert "out is complete, but was not pushed to user/again" in last
    assert last.endswith("repeat the command with --resume to push it")
    assert "model.safetensors" not in hub.repositories["user/again"].files
    assert (pushed.out / "model.safetensors").read_bytes() == model
    result = train(hub, pushed.folder, "hf_right", "--resume", "--hub_model_id", "user/again")
    assert result.returncode == 0
    assert "has ended, after 4 steps" in result.stderr
    assert hub.repositories["user/again"].files == hub.repositories["user/en-de"].files


def test_what_contributing_publishes_is_pushed(hub, tmp_path):
    """The program of CONTRIBUTING.md, with a file in place of the wheel, which test_command.py builds."""
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "model_cards").symlink_to(REPOSITORY / "model_cards")
    (tmp_path / "runs" / "space").mkdir(parents=True)
    (tmp_path / "runs" / "space" / "package.whl").write_bytes(b"wheel")
    result = hub.run(program, folder=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    model = hub.repositories["user/tatoeba-de-en"].files
    assert {"modeling_vaswani.py", "tokenizer.json"} <= model.keys()
    for name in ("README.md", "learning_curve.png"):
        assert model[name] == (BOX / name).read_bytes()
    pushed, stored = load(model["model.safetensors"]), load_file(BOX / "model.safetensors")
    assert all(torch.equal(pushed.pop(name), tensor) for name, tensor in stored.items())
    assert not pushed
    data = hub.repositories["datasets/user/supplement-en-de"].files
    rows = {
        name.split("/")[-1].split("-")[0]: parquet.read_table(BytesIO(data[name])) for name in data if "parquet" in name
    }
    assert {split: len(table) for split, table in rows.items()} == SPLIT_SIZES
    en, de = supplement("test")[0]
    assert rows["test"].to_pylist()[0] == {"translation": {"en": en, "de": de}}
    space = hub.repositories["spaces/user/vaswani-demo"].files
    assert space["package.whl"] == b"wheel"
    command = json.loads(space["Dockerfile"].decode().partition("CMD ")[2])
    assert command[:4] == ["vaswani", "demo", "--model", "user/tatoeba-de-en"]
    (arguments,) = RecipeParser((recipe_module("demo_app.py").DemoArguments,)).parse(command[2:])
    assert (arguments.server_name, arguments.server_port) == ("0.0.0.0", 7860)
