# Everything, on veRL's official image, which has CUDA, vLLM and flash-attn. From the root of a checkout:
#   docker build -f docker/verl.Dockerfile -t trinity-compat .
#   docker run --rm --gpus all --shm-size 10g -v "$PWD:/work" trinity-compat doctor
# Of vLLM 0.24 there are development tags only: veRL's pages name .latest, which its registry lacks.
# Another image: --build-arg VERL_IMAGE=verlai/verl:TAG. The image's own torch and vLLM stay: pip is told to keep them.
ARG VERL_IMAGE=verlai/verl:vllm024.dev2
FROM ${VERL_IMAGE}
WORKDIR /opt/trinity-compat
COPY . .
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN python3 -m pip freeze | grep -iE '^(torch|torchvision|torchaudio|vllm|flash-attn|numpy)==' > /tmp/kept.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/kept.txt '.[run,compare,studio,postgres]' \
    && rm /tmp/kept.txt
WORKDIR /work
ENTRYPOINT ["trinity-compat"]
