#!/usr/bin/env bash
# What is to be checked and measured on a GPU: `recipes/benchmarks/gpu.sh DATA OUT [PART...]`. Without parts, all of them, in
# the order of what one wants to know first. On an H200 search and faults took three minutes, multi30k and decode (of its model)
# five, and train a minute and a half for the smaller model. The part parsing, half an hour, has run on CPUs alone.
#
# A part's program takes more options from OPTIONS: `OPTIONS="--max_minutes 2" recipes/benchmarks/gpu.sh DATA OUT multi30k`,
# `OPTIONS="--sizes small"` with train, `OPTIONS="--beams 4"` with decode.
#
# DATA holds multi30k's `{train,val,test_2016_flickr}.{en,de}.gz`; for canlaws and canlaws_paper `train.{en,fr}.xz`,
# `{valid,test}.{en,fr}.gz` as `canlaws.*`; for parsing, which needs nltk, `craft.{train,dev}.mrg.gz`. OUT receives, for each
# training, the model card, the results, the translations and the learning curve, to be kept in `model_cards/`, and the tables of
# speeds. Models are in `runs/gpu/`; a part that is called again resumes its training. Trainings choose their precision, and print
# its measured speed.
#
# Needs one GPU, no network, and the package's metadata: where it is not installed, its `.egg-info` beside it. A machine with
# torch and transformers alone needs wheels of datasets, defusedxml, evaluate, sacremoses, nltk, dill and multiprocess. Where a
# call must end before a part does, start the script by `setsid` with an OUT that later calls keep, such as runs/out; look at its
# log in them, and pack OUT, which has some 20 files, in the last.
set -euo pipefail
cd "$(dirname "$0")/../.."
data=$1 out=$2
shift 2
[ $# -gt 0 ] || set -- search faults train multi30k decode canlaws canlaws_paper parsing
export HF_HUB_OFFLINE=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
# cuDNN's attention plans anew for each shape of a batch, and batches of tokens have many.
export TORCH_CUDNN_SDPA_DEPRIORITIZED=1
mkdir -p "$out"
python3 -c 'import torch; print("torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())'
python3 -c 'import datasets, defusedxml, evaluate, importlib.metadata as it, sacremoses; it.version("vaswani_transformer")'

again() {  # the option of a training that was begun
    [ ! -e "runs/gpu/$1/_run.json" ] || echo --resume
}

keep() {  # what a run in runs/gpu/$1 has to show
    for file in README.md all_results.json translations.test.txt learning_curve.png; do
        cp "runs/gpu/$1/$file" "$out/$1.$file"
    done
}

# The search on the GPU, replayed as a CUDA graph, against the one on the CPU. A minute.
search() {
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} python3 -m pytest -q tests/test_acceleration.py
}

# Training beside MarianMTModel in the stock trainer and torch.nn.Transformer, in large batches.
train() {
    python3 recipes/benchmarks/train.py --device cuda --tokens 6000 --precisions bfloat16 --seconds 2 --output "$out" \
        --source "$data"/train.en.gz --target "$data"/train.de.gz ${OPTIONS:-}
}

# A training that diverges fails and leaves no model; one of virtual ranks, resumed, ends in the weights of an undisturbed one.
# Two minutes.
faults() {
    rm -rf runs/gpu/{diverging,undisturbed,resumed}
    local tiny=(python3 recipes/train_wmt.py --config recipes/configs/demo_paper.yaml --d_model 64 --d_ff 128 --num_heads 4
        --encoder_layers 1 --decoder_layers 1 --save_steps 10 --eval_strategy no)
    if "${tiny[@]}" --output_dir runs/gpu/diverging --max_steps 20 --learning_rate_factor 1e9 2> "$out/diverging.txt"; then
        echo "gpu.sh: a training that diverged has ended with success" >&2
        exit 1
    fi
    grep "training diverged" "$out/diverging.txt" || { cat "$out/diverging.txt" >&2; exit 1; }
    test ! -e runs/gpu/diverging/model.safetensors
    tiny+=(--virtual_ranks 4 --full_determinism true)
    "${tiny[@]}" --output_dir runs/gpu/undisturbed --max_steps 20
    "${tiny[@]}" --output_dir runs/gpu/resumed --max_steps 10
    "${tiny[@]}" --output_dir runs/gpu/resumed --max_steps 20 --resume
    cmp runs/gpu/{undisturbed,resumed}/checkpoint-20/model.safetensors
}

# To convergence, aim: sacreBLEU >= 40 (cased, 13a) on test_2016_flickr. More dropout and larger batches than on CPUs. 5 minutes.
multi30k() {
    python3 recipes/train_wmt.py --config recipes/configs/multi30k_en_de.yaml \
        --train "$data"/train.{en,de}.gz --validation "$data"/val.{en,de}.gz --test "$data"/test_2016_flickr.{en,de}.gz \
        --output_dir runs/gpu/multi30k $(again multi30k) \
        --dropout 0.3 --source_tokens 4096 --target_tokens 4096 --learning_rate_factor 1 --warmup_steps 1500 \
        --max_steps 12000 --max_minutes 4 --save_steps 250 --average_last 10 --eval_steps 1000 --dataloader_num_workers 2 \
        ${OPTIONS:-}
    keep multi30k
}

# The search beside MarianMTModel; aim: 8 times as fast as in input order. A minute. With CUDA 12 also beside CTranslate2, by
# OPTIONS="--exports DIR", a directory of recipes/export.py.
decode() {
    python3 recipes/benchmarks/decode.py --device cuda --sentences 1000 --batch_sizes 64 256 1000 --output "$out" \
        --text "$data"/test_2016_flickr.en.gz --references "$data"/test_2016_flickr.de.gz --model runs/gpu/multi30k \
        ${OPTIONS:-}
}

# A small model on statutes, and the paper's base model for the same six minutes, with the slope of the paper's warm-up, of which a
# tenth of the minutes makes a part. Called at the same time, by two calls, they share the GPU.
canlaws() {
    train_canlaws canlaws canlaws_en_fr
}

canlaws_paper() {
    train_canlaws canlaws_paper wmt14_en_fr_base --max_steps -1 --max_minutes 6 --save_strategy no --save_minutes 0.2 \
        --domain "Canadian statutes" --tokenizer_model bpe --vocab_size 16000 --prepared runs/gpu/canlaws_data --eval_steps 1000
}

train_canlaws() {  # NAME CONFIG [OPTION...]
    python3 recipes/train_wmt.py --config "recipes/configs/$2.yaml" --output_dir "runs/gpu/$1" $(again "$1") \
        --train "$data"/canlaws.train.{en,fr}.xz --validation "$data"/canlaws.valid.{en,fr}.gz \
        --test "$data"/canlaws.test.{en,fr}.gz "${@:3}" ${OPTIONS:-}
    keep "$1"
}

# The paper's second task on CRAFT, aim: F1 >= 80 of all its dev trees. 25 minutes.
parsing() {
    python3 recipes/train_parsing.py --config recipes/configs/craft_parsing.yaml \
        --train "$data"/craft.train.mrg.gz --validation "$data"/craft.dev.mrg.gz --output_dir runs/gpu/craft $(again craft) \
        --d_model 512 --d_ff 2048 --num_heads 8 --encoder_layers 4 --decoder_layers 4 \
        --dropout 0.2 --attention_dropout 0.2 --source_tokens 4000 --target_tokens 6000 --learning_rate 2e-3 \
        --precision auto --dataloader_num_workers 4 --max_minutes 18 --save_steps 500 --curve_sentences 500 ${OPTIONS:-}
    for file in README.md all_results.json parses.validation.txt learning_curve.png; do
        cp "runs/gpu/craft/$file" "$out/craft.$file"
    done
}

# A part that fails does not keep the others from running. Its first error ends it, which it would not before `||`.
failed=()
set +e
for part in "$@"; do
    (set -e; "$part")
    [ $? -eq 0 ] || failed+=("$part")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "gpu.sh: failed: ${failed[*]}" >&2
    exit 1
fi
