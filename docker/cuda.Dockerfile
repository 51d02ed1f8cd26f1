# syntax=docker/dockerfile:1
# Inferplane on NVIDIA GPUs. It needs the platform package inferplane-cuda, which is not published yet: put its wheel
# into a folder and name that folder as the build context "wheels". Build from the root of the checkout:
#   docker build -f docker/cuda.Dockerfile --build-context wheels=./dist -t inferplane:cuda .
# The host needs an NVIDIA driver of at least the version that the CUDA of the torch build asks for, and the NVIDIA
# Container Toolkit. The image needs no CUDA toolkit: torch's wheels bring their own libraries.
#   docker run --rm --gpus all -p 127.0.0.1:8000:8000 -v inferplane-models:/models inferplane:cuda Qwen/Qwen3-8B
# Several GPUs in one server exchange data through shared memory: add --shm-size 4g.

ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/inferplane
ENV PATH=/opt/inferplane/bin:${PATH} PIP_DISABLE_PIP_VERSION_CHECK=1
# torch is the largest layer and changes least; choose the index of the CUDA version that your driver supports
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://pypi.org/simple
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" --extra-index-url https://pypi.org/simple "torch==${TORCH}"
COPY platform_api platform_api
COPY core core
COPY plugins/quantization plugins/quantization
RUN pip install --no-cache-dir ./platform_api ./core ./plugins/quantization
# hadolint ignore=DL3013  # the wheel in the folder is the version
RUN --mount=type=bind,from=wheels,target=/wheels \
    pip install --no-cache-dir --find-links /wheels inferplane-cuda

FROM python:${PYTHON}-slim-bookworm
# libgomp: what torch computes with on the host; a compiler, for kernels that are compiled for the GPU at hand
# hadolint ignore=DL3008  # the base image's release pins what apt installs, and old versions leave its archive
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 inferplane \
    && useradd --create-home --uid 10001 --gid 10001 inferplane \
    && install -d -o inferplane -g inferplane /models
COPY --from=build /opt/inferplane /opt/inferplane
ENV PATH=/opt/inferplane/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
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
