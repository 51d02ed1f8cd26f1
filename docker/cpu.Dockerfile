# syntax=docker/dockerfile:1
# Inferplane on a CPU. Build from the root of the checkout:
#   docker build -f docker/cpu.Dockerfile -t inferplane:cpu .
# Run, with a volume that keeps downloaded models:
#   docker run --rm -p 127.0.0.1:8000:8000 -v inferplane-models:/models inferplane:cpu Qwen/Qwen2.5-0.5B-Instruct

ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /src
# what the native part of inferplane-cpu is compiled with; it stays in this stage
# hadolint ignore=DL3008  # the base image's release pins what apt installs, and old versions leave its archive
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/inferplane
ENV PATH=/opt/inferplane/bin:${PATH} PIP_DISABLE_PIP_VERSION_CHECK=1
# torch is the largest layer and changes least; the index of CPU builds keeps gigabytes of accelerator libraries out
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" --extra-index-url https://pypi.org/simple "torch==${TORCH}"
COPY platform_api platform_api
COPY core core
COPY backends_cpu backends_cpu
COPY plugins/quantization plugins/quantization
RUN pip install --no-cache-dir ./platform_api ./core ./backends_cpu ./plugins/quantization

FROM python:${PYTHON}-slim-bookworm
# libgomp: what torch computes with on several threads
# hadolint ignore=DL3008  # the base image's release pins what apt installs, and old versions leave its archive
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 inferplane \
    && useradd --create-home --uid 10001 --gid 10001 inferplane \
    && install -d -o inferplane -g inferplane /models
COPY --from=build /opt/inferplane /opt/inferplane
ENV PATH=/opt/inferplane/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/models/huggingface \
    INFERPLANE_CACHE=/models/inferplane \
    INFERPLANE_HOST=0.0.0.0 \
    INFERPLANE_PORT=8000
# by number, so that a cluster can see that it is not root
USER 10001:10001
WORKDIR /home/inferplane
VOLUME /models
EXPOSE 8000
# Loading a model takes its time: a failure counts after ten minutes. /health needs no key.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['INFERPLANE_PORT'] + '/health', timeout=4)"]
# The server drains on SIGTERM for --shutdown-timeout seconds: give `docker stop` as long with --time.
ENTRYPOINT ["inferplane", "serve"]
