#!/usr/bin/env bash
# fastmoco pretrain on several machines under SLURM: sbatch examples/slurm.sh
#
# Before the time limit the run writes a checkpoint, and the job goes back into the queue; it goes on from there until
# the training is done. Edit what is marked, here and in the lines for sbatch.
#
#SBATCH --job-name=fastmoco
#SBATCH --nodes=2                  # edit
#SBATCH --ntasks-per-node=1        # one torchrun on each machine; it starts a process for each GPU
#SBATCH --gpus-per-node=8          # edit
#SBATCH --cpus-per-task=64         # edit: all cores of a machine; the processes divide them
#SBATCH --time=24:00:00            # edit
#SBATCH --signal=B:USR1@300        # to this script alone, 300 seconds before the limit
#SBATCH --requeue                  # SLURM itself queues the job again when a machine fails
#SBATCH --open-mode=append         # one log over all restarts
#SBATCH --output=%x-%j.log

set -u

DATA=${DATA:-/data/imagenet/train}                       # edit: the same images on every machine
OUT=${OUT:-runs/imagenet}                                # edit: on a file system that all machines see
FLAGS=${FLAGS:---recipe table4a/fast_moco --batch 512}   # edit: --batch is that of all GPUs together
PYTHON=${PYTHON:-python}                                 # edit: of the environment that fastmoco is in

# A checkpoint may take longer than the 30 seconds that torchrun gives its processes after a SIGTERM.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240
# Newer versions of srun do not take this over by themselves.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

limit=no
near_the_limit() {
    limit=yes
    echo "the time limit is near: asking the training to stop"
    # To the processes of the job, not to this script. A SIGTERM to srun would end them at once instead.
    scancel --signal=TERM "$SLURM_JOB_ID"
}
trap near_the_limit USR1

# In the background, since a shell hears a signal only when it waits for nothing else. FLAGS are several words.
# shellcheck disable=SC2086
srun "$PYTHON" -m torch.distributed.run \
    --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-8}" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$first:29500" --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    -m fastmoco pretrain "$DATA" --out "$OUT" $FLAGS &
step=$!

# `wait` ends with 138 when the signal comes; the step then still goes on.
code=138
while [ "$code" -eq 138 ]; do
    wait "$step"
    code=$?
done

# What was stopped by the limit goes on later; what is done, or was a mistake, does not.
if [ "$limit" = yes ] && [ "$code" -ne 0 ]; then
    echo "the job goes back into the queue"
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
