"""A push from a real training run, read back in fresh processes, with and without this package."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import REPOSITORY, run_python, write_pairs
from hub_server import HubServer, Repository

from vaswani_transformer.data.phrasebook import phrasebook


pytestmark = pytest.mark.system
RECIPE = REPOSITORY / "recipes" / "train_wmt.py"
SPLITS = {"train": 300, "validation": 6, "test": 6}
SIZES = "--vocab_size 320 --encoder_layers 1 --decoder_layers 1 --d_model 32 --d_ff 32 --num_proc 1"
STEPS = "--max_steps 4 --save_steps 2 --warmup_steps 4 --logging_steps 2 --eval_strategy no"


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
    config = REPOSITORY / "recipes" / "configs" / "demo.yaml"
    words = ["--config", config, "--output_dir", folder / "out", *SIZES.split(), "--hub_model_id", "user/en-de"]
    return hub.run(RECIPE, *words, *on_corpora(folder), *options, folder=folder, token=token)


def on_corpora(folder: Path) -> list[str]:
    """Options that train on a small corpus, push, and name its files in full."""
    corpora = []
    for split, size in SPLITS.items():
        pairs = phrasebook(split)[:size]
        corpora += [f"--{split}", *write_pairs(pairs, folder / f"{split}.en", folder / f"{split}.de")]
    return [*STEPS.split(), *corpora, "--push_to_hub"]


def translate(hub: HubServer, name: str, folder: Path, *options: str) -> dict:
    result = hub.run(TRANSLATE, name, *options, folder=folder, token=None)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def pushed(hub, tmp_path_factory) -> SimpleNamespace:
    """A model that a real run has trained, scored and pushed, as the package itself translates from it by name."""
    folder = tmp_path_factory.mktemp("pushed")
    result = train(hub, folder, None, "--license", "cc-by-4.0", "--hub_token", "hf_right")
    assert result.returncode == 0, result.stderr[-3000:]
    return SimpleNamespace(out=folder / "out", folder=folder, expected=translate(hub, "user/en-de", folder, "package"))


def test_a_run_pushes_model_code_and_card_only(hub, pushed):
    files = hub.repositories["user/en-de"].files
    covered = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"}
    weights = {*covered, "generation_config.json", "manifest.json"}
    names = ("configuration", "modeling", "generation", "search_options", "phrases", "beam_search", "step_decoder")
    code = {f"{name}_vaswani.py" for name in (*names, "pipeline", "languages", "scores")}
    run = {"README.md", "all_results.json", "learning_curve.png", "bleu_by_source_length.png", ".gitattributes"}
    translations = {f"translations.{split}.txt" for split in ("validation", "test", "test_last_checkpoint")}
    assert weights | code <= files.keys() <= weights | code | run | translations
    manifest = json.loads(files["manifest.json"])["files"]
    assert {name: entry["sha256"] for name, entry in manifest.items()} == {
        name: hashlib.sha256(files[name]).hexdigest() for name in covered - {"config.json"}
    }
    require_private(files, pushed.folder)
    for name in files.keys() - {".gitattributes"}:
        assert (pushed.out / name).read_bytes() == files[name]


def require_private(files: dict[str, bytes], folder: Path) -> None:
    """No file has the token, or a path; recipe, configuration, corpora and output were given by their full names."""
    for name, content in files.items():
        assert b"hf_right" not in content, f"{name} contains the token"
        for path in (folder, REPOSITORY, Path.home(), sys.prefix):
            assert str(path).encode() not in content, f"{name} contains {path}"


def test_a_fine_tuned_model_does_not_tell_where_its_parent_was(hub, pushed):
    parent = shutil.copytree(pushed.out, pushed.folder / "parent", ignore=shutil.ignore_patterns("all_results.json"))
    words = ["--model", parent, "--output_dir", pushed.folder / "tuned", "--hub_model_id", "user/tuned"]
    words += ["--source_language", "en", "--target_language", "de", *on_corpora(pushed.folder)]
    result = hub.run(RECIPE, *words, folder=pushed.folder, token="hf_right")
    assert result.returncode == 0, result.stderr[-3000:]
    files = hub.repositories["user/tuned"].files
    require_private(files, pushed.folder)
    results = json.loads(files["all_results.json"])
    assert results["parent"]["name"] == results["model"]["_name_or_path"] == "parent"


def test_translates_in_a_process_without_the_package(hub, pushed):
    results = translate(hub, "user/en-de", pushed.folder, "trust")
    assert results["module"].startswith("transformers_modules.")
    assert {**results, "module": ""} == {**pushed.expected, "module": ""}


def test_the_package_runs_its_own_code_and_no_others(pushed):
    assert pushed.expected["module"] == "vaswani_transformer.model.modeling_vaswani"
    assert pushed.expected["translations"] == pushed.expected["no task"] == pushed.expected["objects"]
    assert pushed.expected["translations"][0] == pushed.expected["generate"]
    assert pushed.expected["translations"][1] == ""


def test_a_model_saved_without_the_package_is_complete_without_network(hub, pushed, tmp_path):
    """A directory saved by remote code has the code again, and loads offline."""
    copy = tmp_path / "copy"
    translate(hub, "user/en-de", pushed.folder, str(copy), "trust", "save")
    offline = {**hub.environment(None), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    result = run_python(["-c", TRANSLATE, copy, "trust"], environment=offline, folder=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    results = json.loads(result.stdout.splitlines()[-1])
    assert {**results, "module": ""} == {**pushed.expected, "module": ""}


def test_models_tokenizers_and_trainers_push_by_transformers_own_methods(hub, pushed):
    script = f"""
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from vaswani_transformer import VaswaniTrainer, VaswaniTrainingArguments
model = AutoModelForSeq2SeqLM.from_pretrained({str(pushed.out)!r})
tokenizer = AutoTokenizer.from_pretrained({str(pushed.out)!r})
model.push_to_hub("user/parts")
tokenizer.push_to_hub("user/parts")
arguments = VaswaniTrainingArguments("trained", hub_model_id="user/trained", hub_private_repo=True, use_cpu=True)
VaswaniTrainer(model, arguments, processing_class=tokenizer).push_to_hub()
"""
    result = hub.run(script, folder=pushed.folder)
    assert result.returncode == 0, result.stderr[-3000:]
    assert hub.repositories["user/trained"].info()["pipeline_tag"] == "translation"
    assert hub.repositories["user/trained"].private
    both = translate(hub, "user/parts", pushed.folder, "trust")
    assert both["translations"] == pushed.expected["translations"]


def test_files_that_lie_in_the_directory_are_not_pushed(hub, pushed, tmp_path):
    directory = tmp_path / "out"
    shutil.copytree(pushed.out, directory)
    for name in ("hub_token.json", "token", "notes.txt", "checkpoint-9/modeling_vaswani.py", "data/config.json"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("secret", encoding="utf-8")
    hub.repositories["user/named"] = Repository("user/named")
    result = hub.run(
        'from vaswani_transformer.runs.push import push_run; push_run("user/named", "out")', folder=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert hub.repositories["user/named"].files.keys() == hub.repositories["user/en-de"].files.keys()


def test_what_cannot_be_pushed_is_refused_before_training(hub, tmp_path):
    result = train(hub, tmp_path, "hf_wrong")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(
        "train_wmt.py: hub_model_id: cannot write to user/en-de on the Hub"
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"_run.json"}, "what is only begun"


@pytest.mark.parametrize(
    ("token", "names"), [(None, ["user/en-de"]), ("hf_right", ["closed/new", "user/closed", "not a name"])]
)
def test_a_repository_must_be_writable(hub, tmp_path, token, names):
    """Also one that exists already, which `create_repo` alone does not ask."""
    hub.repositories["user/closed"] = Repository("user/closed")
    hub.read_only = {"closed", "user/closed"}
    script = f"""
from vaswani_transformer.runs.push import prepare_repository
for name in {names}:
    try:
        prepare_repository(name)
    except ValueError as error:
        print(error)
"""
    result = hub.run(script, folder=tmp_path, token=token)
    hub.read_only = set()
    messages = result.stdout.splitlines()
    assert len(messages) == len(names), result.stderr
    for name, message in zip(names, messages, strict=True):
        assert message.startswith(f"hub_model_id: cannot write to {name} on the Hub")
        assert "hf auth login" in message


def test_resuming_a_finished_run_pushes_it(hub, pushed):
    result = train(hub, pushed.folder, "hf_right", "--resume", "--hub_model_id", "user/again")
    assert result.returncode == 0
    assert "has ended, after 4 steps" in result.stderr
    assert hub.repositories["user/again"].files == hub.repositories["user/en-de"].files


def test_an_interrupted_push_leaves_the_model_and_says_how_to_continue(hub, pushed, tmp_path):
    hub.drop_uploads = True
    repository, directory = "user/interrupted", tmp_path / "out"
    shutil.copytree(pushed.out, directory)
    weights = bytearray((directory / "model.safetensors").read_bytes())
    weights[-1] ^= 1  # else the Hub has them already
    (directory / "model.safetensors").write_bytes(weights)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    script = f"""
import time
time.sleep = lambda seconds: None  # between the client's attempts
from transformers import AutoModelForSeq2SeqLM
from vaswani_transformer.runs.push import prepare_repository, push_run
prepare_repository({repository!r})
push_run({repository!r}, "out")
"""
    result = hub.run(script, folder=tmp_path)
    hub.drop_uploads = False
    last = result.stderr.splitlines()[-1]
    assert f"OSError: out is complete, but was not pushed to {repository}" in last
    assert "model.safetensors" not in hub.repositories[repository].files
    assert all(path.read_bytes() == content for path, content in before.items())
    assert last.endswith("repeat the command with --resume to push it")
    again = hub.run(script, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert hub.repositories[repository].files["model.safetensors"] == before[directory / "model.safetensors"]
    assert hub.repositories[repository].files.keys() == hub.repositories["user/en-de"].files.keys()
