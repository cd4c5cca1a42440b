#!/bin/bash
# Translate a file in shards on Slurm, each by a task of an array. In the repository's root:
#
#     sbatch --array=0-499%64 recipes/cluster/slurm.sh 500 --model runs/demo --input news.en --output news.de
#     ls news.de.shards  # to start a task again does no harm
#     python recipes/translate.py --model runs/demo --input news.en --output news.de  # collects the shards
#SBATCH --job-name=translate
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --requeue
exec python recipes/translate.py --shard "$SLURM_ARRAY_TASK_ID/$1" "${@:2}"
