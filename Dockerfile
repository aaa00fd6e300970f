# The image of kvweave: `docker build .`, or `docker compose build`. It runs as user 10001 and needs no writable root.
#
# torch's default build brings CUDA along. For another build, hand over the index that has it:
#
#     docker build --build-arg TORCH_INDEX_URL=... .
#
# What changes seldom is in the lower layers: a change of the code installs and ships a few megabytes.

FROM python:3.11.15-slim-trixie AS base
ENV PATH=/opt/kvweave/bin:$PATH


# What is to be installed, and nothing else of the two files: a bumped linter does not install torch again.
FROM base AS wanted
ARG EXTRAS=readers,traces
WORKDIR /wanted
COPY constraints.txt pyproject.toml ./
RUN grep '^torch==' constraints.txt > torch.txt \
    && python -c 'import sys, tomllib; \
project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extras = [name for name in sys.argv[1].split(",") if name]; \
print(*project["dependencies"], *(each for name in extras for each in project["optional-dependencies"][name]), sep="\n")' \
    "$EXTRAS" > requirements.txt


FROM base AS packages
ARG TORCH_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /wanted
# The code stands in a folder of its own, and so in a layer of its own.
RUN python -m venv /opt/kvweave \
    && echo /opt/kvweave-code > /opt/kvweave/lib/python3.11/site-packages/kvweave.pth
COPY --from=wanted /wanted/torch.txt ./
RUN pip install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} -r torch.txt
COPY --from=wanted /wanted/constraints.txt /wanted/requirements.txt ./
RUN pip install -c constraints.txt -r requirements.txt && pip check


FROM packages AS code
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY store ./store
COPY retriever ./retriever
COPY blend ./blend
COPY service ./service
RUN pip install --no-deps --target /opt/kvweave-code .


FROM base
LABEL org.opencontainers.image.title=kvweave org.opencontainers.image.licenses=Apache-2.0
# A new volume takes owner and rights of the folder that it is mounted over.
RUN groupadd --gid 10001 kvweave \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin kvweave \
    && install -d -o 10001 -g 10001 -m 0700 /data /cache \
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
