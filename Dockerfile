# The image of a broker, and of the command line: docs/containers.md. Build it from a clean checkout: docker build -t barnabas .
# Both stages are Debian's release that Barnabas is tested on, with its Python, which is up to a third faster than other builds.
FROM debian:bookworm-slim AS build
# Versions are those of the release: a pinned one disappears from the archive with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/build && python3 -m venv /opt/barnabas
COPY requirements/build.txt requirements/image.txt /src/requirements/
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes -r /src/requirements/build.txt \
    && /opt/barnabas/bin/pip install --no-cache-dir --require-hashes -r /src/requirements/image.txt
COPY . /src
WORKDIR /src
# The compiled modules must be there: without them, a broker is several times slower, and only a line in a log would say so.
RUN BARNABAS_COMPILE=1 /opt/build/bin/python -m build --wheel --no-isolation --outdir /wheels \
    && /opt/barnabas/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/barnabas/bin/barnabas --version >/wheels/version \
    && grep 'records: compiled, requests: compiled' /wheels/version \
    && /opt/barnabas/bin/pip uninstall -y pip setuptools

FROM debian:bookworm-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 barnabas \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/barnabas --shell /usr/sbin/nologin barnabas \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/barnabas
COPY --from=build /opt/barnabas /opt/barnabas
# The root file system may be read-only: nothing is written outside the volume.
ENV PATH=/opt/barnabas/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    BARNABAS_ADMIN_LISTENER=127.0.0.1:9094 \
    BARNABAS_LOG_DIRS=/var/lib/barnabas
USER 10001:10001
WORKDIR /var/lib/barnabas
VOLUME /var/lib/barnabas
EXPOSE 9092 9093 9094
# A stop hands leaderships over first: give it 45 seconds (docker stop -t 45).
STOPSIGNAL SIGTERM
# Healthy: clients may use this broker. The HTTP API must listen on port 9094 of loopback, too.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python3", "-P", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9094/readyz', timeout=4)"]
ENTRYPOINT ["barnabas"]
CMD ["broker", "start"]
