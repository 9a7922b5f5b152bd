#!/usr/bin/env bash
# Supervised fine-tuning on the toy task: sort four digits. Make model and data first:
#   trinity-compat toy "${TOY_DIR:-$PWD/toy}"
set -xeuo pipefail

TOY_DIR=${TOY_DIR:-$PWD/toy}

torchrun --standalone --nnodes=1 --nproc_per_node=1 \
    -m verl.trainer.sft_trainer \
    data.train_files="$TOY_DIR/data/sft.parquet" \
    data.val_files="$TOY_DIR/data/sft_val.parquet" \
    data.messages_key=messages \
    data.train_batch_size=64 \
    data.micro_batch_size_per_gpu=64 \
    data.use_dynamic_bsz=False \
    data.max_length=64 \
    model.path="$TOY_DIR/model" \
    optim.lr=1e-3 \
    trainer.project_name=toy \
    trainer.experiment_name=sft \
    trainer.default_local_dir=checkpoints/toy/sft \
    trainer.logger='["console","tensorboard"]' \
    trainer.total_training_steps=20 \
    trainer.test_freq=10 \
    trainer.save_freq=10
