#!/bin/sh
# Compresses standard input and cuts it into parts of at most $1 bytes: $2/part-K-of-N. In blocks, so that all cores
# of the machine unpack.
set -eu
room=$1 parts=$2
xz -T0 -6 --block-size=24MiB | split -b "$room" -d - "$parts/part-"
number=$(find "$parts" -name 'part-*' | wc -l)
for part in "$parts"/part-*; do
  mv "$part" "$part-of-$number"
done
