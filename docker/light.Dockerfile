# The light side: read, translate, audit, compare; no torch. From the root of a checkout:
#   docker build -f docker/light.Dockerfile -t trinity-compat-light .
#   docker run --rm -v "$PWD:/work" trinity-compat-light audit run.sh
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.12-slim
RUN --mount=type=bind,from=build,source=/wheel,target=/wheel \
    pip install --no-cache-dir /wheel/*.whl
WORKDIR /work
USER 65534:65534
ENTRYPOINT ["trinity-compat"]
