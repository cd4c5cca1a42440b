#!/usr/bin/env bash
# What is to be measured on a GPU, in one go: `recipes/benchmarks/gpu.sh DATA OUT`.
#
# DATA holds multi30k's `{train,val,test_2016_flickr}.{en,de}.gz` and `newstest2013.{en,de}.gz`; OUT receives, for each training,
# the model card, the results, the translations and the learning curve, to be kept in `model_cards/`, and the table of decoding
# speeds, for `recipes/benchmarks/`. Needs one GPU with bf16, ctranslate2, and no network. About 20 minutes on an H200 (an
# estimate: it has not run yet).
set -euo pipefail
cd "$(dirname "$0")/../.."
data=$1 out=$2
export HF_HUB_OFFLINE=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

# The search on the GPU, replayed as a CUDA graph, against the one on the CPU.
python3 -m pytest -q tests/test_generation_vaswani.py -k gpu

# multi30k to convergence, aim: sacreBLEU >= 40 (cased, 13a) on test_2016_flickr. More dropout and larger batches than on a CPU.
python3 recipes/train_wmt.py --config recipes/configs/multi30k_en_de.yaml \
    --train "$data"/train.{en,de}.gz --validation "$data"/val.{en,de}.gz --test "$data"/test_2016_flickr.{en,de}.gz \
    --output_dir runs/multi30k_gpu --bf16 true \
    --dropout 0.3 --source_tokens 4096 --target_tokens 4096 --learning_rate_factor 1 --warmup_steps 2000 \
    --max_steps 12000 --save_steps 500 --average_last 10 --eval_steps 1000

mkdir -p "$out"
for file in README.md all_results.json translations.test.txt learning_curve.png; do
    cp "runs/multi30k_gpu/$file" "$out/multi30k_gpu.$file"
done

# Beam search beside MarianMTModel and CTranslate2; aims: 8 times MarianMTModel in input order, and CTranslate2 in float16.
python3 recipes/benchmarks/decode.py --device cuda --base_sentences 3000 --sentences 3000 \
    --text "$data"/newstest2013.en.gz --references "$data"/newstest2013.de.gz --model runs/multi30k_gpu --output "$out"
