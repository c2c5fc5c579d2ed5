#!/bin/sh
# A run on the GPUs of one machine; started again after an interruption, it goes on where it was.
#
#   RECIPE=dino_vits16_entmax15 DATA="imagenet:/data/imagenet?split=train" RUN=runs/entmax15 GPUS=8 sh train/torchrun.sh [--set ...]
set -eu

: "${RECIPE:?a recipe}" "${DATA:?a DATA string}" "${RUN:?a run directory}"
export OMP_NUM_THREADS=1

if [ -f "$RUN/checkpoints/last.pt" ]; then RESUME=--resume; else RESUME=; fi
exec torchrun --standalone --nproc-per-node="${GPUS:-1}" -m diffusionlens train "$RECIPE" --data "$DATA" --out "$RUN" $RESUME "$@"
