# The image of kvweave: `docker build .`, or `docker compose build`. It runs as user 10001 and needs no writable root.
#
# All that is installed is told by hash: `make lock` writes the two files from constraints.txt. torch's default build
# brings CUDA along. For another build, hand over the index that has it; its hashes are not here, so that torch, and
# what only that build of it needs, is then taken by version alone:
#
#     docker build --build-arg TORCH_INDEX_URL=... .
#
# A tag can be moved, a digest cannot. This one is the index, for all platforms, under which public projects pin the tag;
# `--build-arg PYTHON_IMAGE=...` is for another.
#
# What changes seldom is in the lower layers: a change of the code installs and ships a few megabytes.

ARG PYTHON_IMAGE=python:3.11.15-slim-trixie@sha256:db3ff2e1800a8581e2c48a27c3995339d47bdf046da21c7627accd3d51053a93
FROM ${PYTHON_IMAGE} AS base
ENV PATH=/opt/kvweave/bin:$PATH


FROM base AS packages
ARG TORCH_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ONLY_BINARY=:all:
WORKDIR /wanted
# The code stands in a folder of its own, and so in a layer of its own.
RUN python -m venv /opt/kvweave \
    && echo /opt/kvweave-code > /opt/kvweave/lib/python3.11/site-packages/kvweave.pth
COPY requirements.lock ./
RUN pip install --require-hashes --no-deps -r requirements.lock
COPY torch.lock ./
RUN if test -z "$TORCH_INDEX_URL"; then \
        pip install --require-hashes --no-deps -r torch.lock; \
    else \
        pip install --extra-index-url "$TORCH_INDEX_URL" "$(grep -o '^torch==[^ ]*' torch.lock)"; \
    fi && pip check


FROM packages AS code
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY store ./store
COPY retriever ./retriever
COPY blend ./blend
COPY service ./service
RUN pip install --no-deps --no-build-isolation --target /opt/kvweave-code .


FROM base
LABEL org.opencontainers.image.title=kvweave org.opencontainers.image.licenses=Apache-2.0
# A new volume takes owner and rights of the folder that it is mounted over.
RUN groupadd --gid 10001 kvweave \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin kvweave \
    && install -d -o 10001 -g 10001 -m 0700 /data /cache /postgres-key /vllm-key \
    && install -d -o 10001 -g 10001 -m 0755 /metrics-key /objects
COPY --from=packages /opt/kvweave /opt/kvweave
# On a GPU torch compiles kernels at run time, and asks for a compiler. The CPU build does without.
# hadolint ignore=DL3008
RUN if python -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; then \
        apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=code /opt/kvweave-code /opt/kvweave-code
# A temporary folder is seldom executable in a container: what is compiled at run time goes into the cache.
ENV PATH=/opt/kvweave-code/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/cache \
    NUMBA_CACHE_DIR=/cache/numba \
    TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    KVWEAVE_HOST=0.0.0.0 \
    KVWEAVE_DATA=/data \
    KVWEAVE_STORE=lmdb:///data/store
USER 10001:10001
WORKDIR /data
VOLUME ["/data", "/cache"]
EXPOSE 8000
# Not urlopen: it would ask a proxy that the environment names.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('KVWEAVE_PORT', 8000)), timeout=4); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["kvweave"]
CMD ["serve"]
