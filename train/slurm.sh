#!/bin/sh
# A run on a Slurm cluster that survives its time limit and lost nodes: 2 nodes of 8 GPUs; Slurm starts it again, and it goes on
# where it was.
#
#   RECIPE=dino_vits16_entmax15 DATA="imagenet:/data/imagenet?split=train" RUN=/scratch/runs/entmax15 sbatch train/slurm.sh
#
#SBATCH --job-name=diffusionlens
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Ten minutes before the limit the processes get SIGTERM: they finish their step, write a checkpoint and leave.
#SBATCH --signal=B:TERM@600
set -eu

: "${RECIPE:?a recipe}" "${DATA:?a DATA string}" "${RUN:?a run directory that every node sees}"
ADDRESS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=1

if [ -f "$RUN/checkpoints/last.pt" ]; then RESUME=--resume; else RESUME=; fi
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint="$ADDRESS:29500" \
  --rdzv-id="$SLURM_JOB_ID" -m diffusionlens train "$RECIPE" --data "$DATA" --out "$RUN" $RESUME &
PROCESS=$!

requeue() {
  scancel --signal=TERM "$SLURM_JOB_ID.0" || true # the step: torchrun passes it on to the ranks
  wait "$PROCESS" || true
  scontrol requeue "$SLURM_JOB_ID"
}
trap requeue TERM
wait "$PROCESS"
