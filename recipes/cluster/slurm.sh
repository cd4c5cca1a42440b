#!/bin/bash
# Translate a directory of shards on Slurm, each by a task of an array. In the repository's root:
#
#     python recipes/translate.py --model MODEL --input news.en --output news.de --work work --lines_per_shard 50000
#     sbatch --array=0-499%64 recipes/cluster/slurm.sh work
#     python recipes/translate.py --work work --status
#     python recipes/translate.py --work work --collect
#
# --status writes the missing shards as --array takes them. To start a task again does no harm.
#SBATCH --job-name=translate
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --requeue
exec python recipes/translate.py --work "$1" --shard "$SLURM_ARRAY_TASK_ID"
