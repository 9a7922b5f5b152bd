#!/usr/bin/env bash
# Supervised fine-tuning of multi-turn dialogues.
set -x
nproc_per_node=${1:-8}
save_path=${2:-checkpoints/sft}

torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \
    -m verl.trainer.sft_trainer \
    data.train_files=$HOME/data/dialogues/train.parquet \
    data.val_files=$HOME/data/dialogues/test.parquet \
    data.train_batch_size=64 \
    data.messages_key=messages \
    data.max_length=4096 \
    data.micro_batch_size_per_gpu=4 \
    model.path=Qwen/Qwen2.5-3B-Instruct \
    optim.lr=1e-5 \
    optim.weight_decay=0.01 \
    engine.ulysses_sequence_parallel_size=2 \
    trainer.default_local_dir=$save_path \
    trainer.project_name=dialogues \
    trainer.experiment_name=qwen2_5_3b \
    trainer.logger=console \
    trainer.total_epochs=2
