#!/usr/bin/env bash
# What is to be checked and measured on a GPU: `recipes/benchmarks/gpu.sh DATA OUT [PART...]`. Without parts, all but parsing, in
# the order of what one wants to know first. Each part is meant to take less than five minutes, parsing half an hour; the parts
# that train by `--torch_compile true` have run on CPUs alone.
#
# `REHEARSAL=1 recipes/benchmarks/gpu.sh DATA OUT` runs the same parts on a CPU, with tiny models and a few steps, into OUT alone.
# A few hundred lines of each file of DATA are enough for it. Its numbers say nothing.
#
# A part's program takes more options from OPTIONS: `OPTIONS="--max_minutes 2" recipes/benchmarks/gpu.sh DATA OUT multi30k`,
# `OPTIONS="--beams 4"` with decode.
#
# DATA holds multi30k's `{train,val,test_2016_flickr}.{en,de}.gz`; for canlaws and canlaws_paper `train.{en,fr}.xz`,
# `{valid,test}.{en,fr}.gz` as `canlaws.*`; for parsing, which needs nltk, `craft.{train,dev}.mrg.gz`. OUT receives, for each
# training, the model card, the results, the translations and the learning curve, to be kept in `model_cards/`, and the tables of
# speeds. Models are in `runs/gpu/`; a part that is called again resumes its training.
#
# Needs one GPU, no network, and the package's metadata: where it is not installed, its `.egg-info` beside it. A machine with
# torch and transformers alone needs wheels of datasets, defusedxml, evaluate, sacremoses, nltk, dill and multiprocess. Where a
# call must end before a part does, start the script by `setsid` with an OUT that later calls keep, such as runs/out; look at its
# log in them, and pack OUT, which has some 20 files, in the last.
set -euo pipefail
cd "$(dirname "$0")/../.."
data=$1 out=$2
shift 2
[ $# -gt 0 ] || set -- multi30k small base curves canlaws_data canlaws_paper canlaws search decode faults
device=cuda runs=runs/gpu
# Options of the parts' programs, which come last and replace those before them.
training=() parser=() speed=() curves=() decoding=() tests=()
if [ -n "${REHEARSAL:-}" ]; then
    device=cpu runs=$out/runs
    parser=(--use_cpu true --precision float32 --d_model 16 --d_ff 32 --num_heads 2 --encoder_layers 1 --decoder_layers 1
        --vocab_size 400 --source_tokens 600 --target_tokens 600 --max_steps 6 --save_steps 2 --eval_steps 3
        --dataloader_num_workers 0)
    training=("${parser[@]}" --torch_compile_backend eager)
    speed=(--sizes tiny --tokens 300 --vocab_size 300 --seconds 0.01 --rounds 1 --precisions float32)
    curves=(--size tiny --tokens 300 --vocab_size 300 --steps 20 --backend eager --bf16 false)
    decoding=(--sentences 8 --batch_sizes 4 --seconds 1)
    tests=(-k replayed)
fi
export HF_HUB_OFFLINE=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
# cuDNN's attention plans anew for each shape of a batch, and batches of tokens have many.
export TORCH_CUDNN_SDPA_DEPRIORITIZED=1
mkdir -p "$out"
python3 -c 'import torch; print("torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())'
python3 -c 'import datasets, defusedxml, evaluate, importlib.metadata as it, sacremoses; it.version("vaswani_transformer")'

again() {  # the option of a training that was begun
    [ ! -e "$runs/$1/_run.json" ] || echo --resume
}

keep() {  # what a run has to show
    for file in README.md all_results.json translations.test.txt learning_curve.png; do
        cp "$runs/$1/$file" "$out/$1.$file"
    done
}

# Image captions in one minute of training; aim: 41 BLEU of validation. The first training fills the compiler's cache. More dropout
# and larger batches than on CPUs. On an H200, without compiling, 3.9 minutes reached 41.2.
multi30k() {
    rm -rf "$runs/compiling"
    train_multi30k compiling --max_steps 20 --warmup_steps 10 --save_steps 10 --average_last 1 --eval_strategy no
    train_multi30k multi30k $(again multi30k) --max_steps 12000 --max_minutes 1
    keep multi30k
}

train_multi30k() {  # NAME [OPTION...]
    python3 recipes/train_wmt.py --config recipes/configs/multi30k_en_de.yaml --output_dir "$runs/$1" \
        --train "$data"/train.{en,de}.gz --validation "$data"/val.{en,de}.gz --test "$data"/test_2016_flickr.{en,de}.gz \
        --torch_compile true --precision bf16 --dropout 0.3 --source_tokens 4096 --target_tokens 4096 \
        --learning_rate_factor 1 --warmup_steps 1500 --save_steps 400 --average_last 10 --eval_steps 2000 \
        --dataloader_num_workers 2 "${@:2}" "${training[@]}" ${OPTIONS:-}
}

# Training beside MarianMTModel in the stock trainer and torch.nn.Transformer, in large batches. Aims: ten times the 126,000 target
# tokens a second of d_model 256 on an H200; 400,000 of the paper's base model on an H100.
small() {
    speeds small --tokens 6000 --seconds 2
}

base() {
    speeds base --tokens 25000 --seconds 4
}

speeds() {  # SIZE [OPTION...]
    python3 recipes/benchmarks/train.py --device "$device" --sizes "$1" --precisions bfloat16 --output "$out/$1" \
        --source "$data"/train.en.gz --target "$data"/train.de.gz "${@:2}" "${speed[@]}" ${OPTIONS:-}
}

# The losses of a compiled and of an eager training, the number of shapes and of graphs.
curves() {
    python3 recipes/benchmarks/compiled.py --device "$device" --size small --bf16 true --tokens 6000 --steps 1000 \
        --source "$data"/train.en.gz --target "$data"/train.de.gz --output "$out" "${curves[@]}" ${OPTIONS:-}
}

# The paper's base model and a small model on statutes for the same minutes, one after the other. The base model keeps the slope of
# the paper's warm-up, of which a tenth of the minutes makes a part.
canlaws_data() {
    canlaws_recipe prepare_data canlaws_en_fr "${parser[@]}"
}

canlaws_paper() {
    train_canlaws canlaws_paper wmt14_en_fr_base --max_steps -1 --save_strategy no --save_minutes 0.2 --eval_steps 1000 \
        --domain "Canadian statutes" --tokenizer_model bpe --vocab_size 16000
}

canlaws() {
    train_canlaws canlaws canlaws_en_fr
}

train_canlaws() {  # NAME CONFIG [OPTION...]
    canlaws_recipe train_wmt "$2" --output_dir "$runs/$1" $(again "$1") --torch_compile true --precision bf16 --max_minutes 3.5 \
        "${@:3}" "${training[@]}"
    keep "$1"
}

canlaws_recipe() {  # RECIPE CONFIG [OPTION...]
    python3 "recipes/$1.py" --config "recipes/configs/$2.yaml" --prepared "$runs/canlaws_data" \
        --train "$data"/canlaws.train.{en,fr}.xz --validation "$data"/canlaws.valid.{en,fr}.gz \
        --test "$data"/canlaws.test.{en,fr}.gz "${@:3}" ${OPTIONS:-}
}

# The search on the GPU, replayed as a CUDA graph, against the one on the CPU. A minute.
search() {
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} python3 -m pytest -q tests/test_acceleration.py "${tests[@]}"
}

# The search beside MarianMTModel; aims: twice as fast as MarianMTModel sorted, three times with beam 4. A minute. With CUDA 12
# also beside CTranslate2, by OPTIONS="--exports DIR", a directory of recipes/export.py.
decode() {
    python3 recipes/benchmarks/decode.py --device "$device" --sentences 1000 --batch_sizes 64 256 1000 --output "$out" \
        --text "$data"/test_2016_flickr.en.gz --references "$data"/test_2016_flickr.de.gz --model "$runs/multi30k" \
        "${decoding[@]}" ${OPTIONS:-}
}

# A training that diverges fails and leaves no model; one of virtual ranks, resumed, ends in the weights of an undisturbed one.
# Two minutes.
faults() {
    rm -rf "$runs"/{diverging,undisturbed,resumed}
    local tiny=(python3 recipes/train_wmt.py --config recipes/configs/demo_paper.yaml --d_model 64 --d_ff 128 --num_heads 4
        --encoder_layers 1 --decoder_layers 1 --save_steps 10 --eval_strategy no)
    if "${tiny[@]}" --output_dir "$runs/diverging" --max_steps 20 --learning_rate_factor 1e9 2> "$out/diverging.txt"; then
        echo "gpu.sh: a training that diverged has ended with success" >&2
        exit 1
    fi
    grep "training diverged" "$out/diverging.txt" || { cat "$out/diverging.txt" >&2; exit 1; }
    test ! -e "$runs/diverging/model.safetensors"
    tiny+=(--virtual_ranks 4 --full_determinism true)
    "${tiny[@]}" --output_dir "$runs/undisturbed" --max_steps 20
    "${tiny[@]}" --output_dir "$runs/resumed" --max_steps 10
    "${tiny[@]}" --output_dir "$runs/resumed" --max_steps 20 --resume
    cmp "$runs"/{undisturbed,resumed}/checkpoint-20/model.safetensors
}

# The paper's second task on CRAFT, aim: F1 >= 80 of all its dev trees. 25 minutes.
parsing() {
    python3 recipes/train_parsing.py --config recipes/configs/craft_parsing.yaml \
        --train "$data"/craft.train.mrg.gz --validation "$data"/craft.dev.mrg.gz --output_dir "$runs/craft" $(again craft) \
        --d_model 512 --d_ff 2048 --num_heads 8 --encoder_layers 4 --decoder_layers 4 \
        --dropout 0.2 --attention_dropout 0.2 --source_tokens 4000 --target_tokens 6000 --learning_rate 2e-3 \
        --precision auto --dataloader_num_workers 4 --max_minutes 18 --save_steps 500 \
        "${parser[@]}" ${OPTIONS:-}
    for file in README.md all_results.json parses.validation.txt learning_curve.png; do
        cp "$runs/craft/$file" "$out/craft.$file"
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
