# shellcheck shell=bash
# Sourced. `reader WORD…` runs trinity-compat without the job's environment, which may hold a token: what it reads
# has been written by whoever opened the pull request. (setup-python's Python may need LD_LIBRARY_PATH.)
reader() {
  env -i PATH="$PATH" HOME="${HOME:-/}" LANG=C.UTF-8 \
    ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"} \
    ${GITHUB_ACTIONS:+"GITHUB_ACTIONS=$GITHUB_ACTIONS"} \
    "$TRINITY_COMPAT" "$@"
}
