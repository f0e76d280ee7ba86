# Airlock's images, all from one base. `make setup` builds the two sandbox images and runtime, `make gateway-image` the
# gateway. deploy/images.py puts the wheels into the build context, so no stage uses an index of Python packages.
#
# airlock-base is python:3.12-slim, or Debian made from the host's own apt if no registry is reachable.
ARG BASE=airlock-base

# --- sandbox-slim: Python, git and small programs. Contains nothing of Airlock. -----------------------------------------
FROM ${BASE} AS sandbox-slim
# The Debian base has all of these (DEBIAN_PACKAGES in deploy/images.py); the pulled one lacks most.
RUN command -v rg >/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends \
             curl file git jq less make patch procps ripgrep sqlite3 unzip zip \
         && rm -rf /var/lib/apt/lists/*; }
# A commit needs an identity. Restored or forked files may belong to another user, so every directory is safe.
RUN mkdir -p /workspace \
    && git config --system user.name "Airlock sandbox" \
    && git config --system user.email sandbox@airlock.invalid \
    && git config --system init.defaultBranch main \
    && git config --system safe.directory '*'
# The root is read-only, so pip installs into HOME, which is /workspace. Its programs are last on PATH, so a program that
# a policy allows by name is the image's.
ENV SHELL=/bin/bash USER=sandbox LOGNAME=sandbox \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/workspace/.local/bin \
    PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /workspace
LABEL airlock.kind="image"
CMD ["/bin/sh"]

# --- sandbox: the default image of sandboxes, with a compiler, uv, ssh and wget in addition. ----------------------------
FROM ${BASE} AS uv
LABEL airlock.kind="image"
COPY .build/images/sandbox /wheels
RUN python3 -m zipfile -e /wheels/uv-*.whl /wheel && install -D -t /programs /wheel/uv-*.data/scripts/*

FROM sandbox-slim AS sandbox
COPY --from=uv /programs /usr/local/bin
# An interrupted build leaves nothing, so dpkg need not wait for the disk. lto-dump is a tenth of gcc, and nobody runs it.
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends -o Dpkg::Options::=--force-unsafe-io \
           -o "Dpkg::Options::=--path-exclude=/usr/bin/*lto-dump*" gcc libc6-dev openssh-client wget \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
# ssh refuses a user without a name. The loader's cache, which only tool code uses, is how libc finds the library.
COPY deploy/tool_user_name.c /tmp/
RUN gcc -shared -fPIC -Os -s -Wall -Werror -o /usr/local/lib/libnss_tool_user.so.2 /tmp/tool_user_name.c \
    && rm /tmp/tool_user_name.c && ldconfig \
    && sed -i 's/^passwd:.*/& tool_user/' /etc/nsswitch.conf

# --- start_tool: the program that waits for the next start of a tool process. It has no C library. ------------------------
FROM sandbox AS start_tool
LABEL airlock.kind="image"
COPY deploy/start_tool.c /source/
RUN gcc -Os -s -Wall -Wextra -Werror -static -nostdlib -ffreestanding -fno-pie -no-pie -fno-stack-protector \
        -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns -Wl,--build-id=none -Wl,-z,noseparate-code \
        -o /start_tool /source/start_tool.c

# --- runtime: the daemon with its own loader, Python and libraries, mounted read-only into every sandbox. --------------
FROM ${BASE} AS bundle
LABEL airlock.kind="image"
COPY deploy/bundle.py /source/deploy/bundle.py
COPY .build/images/runtime /wheels
COPY sandbox /source/sandbox
COPY --from=start_tool /start_tool /source/
# The second command tests the first: everything that a daemon imports, at any time, is in the bundle, with the fast
# protobuf.
RUN python3 -X no_debug_ranges /source/deploy/bundle.py \
        --protobuf /wheels/protobuf-*.whl --source /source --output /opt/airlock \
    && /opt/airlock/lib/ld.so --inhibit-cache --library-path /opt/airlock/lib /opt/airlock/bin/python3 -I -S -B -X utf8 -c \
        "from sandbox.daemon import lazy_module; lazy_module.install(); \
import importlib, pkgutil, sys, sandbox.daemon; \
modules = [module.name for module in pkgutil.walk_packages(sandbox.daemon.__path__, 'sandbox.daemon.')]; \
[importlib.import_module(name) for name in ('_ctypes', 'hashlib', *modules)]; \
[getattr(late, 'any_name', None) for late in [*sys.modules.values()] if isinstance(late, lazy_module.LazyModule)]; \
from google.protobuf.internal import api_implementation; \
from sandbox.daemon.build import BUILD; \
sys.exit(api_implementation.Type() != 'upb' or sys.prefix != '/opt/airlock' or len(BUILD) != 64 or len(modules) < 20 or len(lazy_module.loaded_for_use()) < 15)" \
    && /opt/airlock/lib/ld.so --inhibit-cache --library-path /opt/airlock/lib /opt/airlock/bin/python3 -I -S -B -X utf8 \
        -m sandbox.tls --help >/dev/null \
    && install /source/start_tool /opt/airlock/bin/ && { /opt/airlock/bin/start_tool; [ $? = 64 ]; } \
    && chgrp 599999999 /opt/airlock && chmod 750 /opt/airlock

# Only the daemon enters /opt/airlock (BUNDLE_GID of sandbox/daemon/supervisor/launch.py): COPY keeps modes below its source.
FROM scratch AS runtime
COPY --from=bundle /opt /opt
LABEL airlock.kind="image"
# How the daemon starts in any image; the engine reads this. -I -S: ignore the tenant image's environment variables,
# working directory and site-packages; -B: write nothing; utf8: in any locale.
LABEL airlock.command='["/opt/airlock/lib/ld.so","--inhibit-cache","--library-path","/opt/airlock/lib","/opt/airlock/bin/python3","-I","-S","-B","-X","utf8","-m","sandbox.daemon"]'

# --- gateway: the service. ---------------------------------------------------------------------------------------------
FROM ${BASE} AS gateway-packages
LABEL airlock.kind="image"
COPY .build/images/gateway /wheels
RUN python3 -m venv /opt/gateway \
    && /opt/gateway/bin/pip install --no-cache-dir --no-index --find-links /wheels --require-hashes -r /wheels/gateway.lock \
    && /opt/gateway/bin/pip install --no-cache-dir --no-index --no-deps /wheels/airlock_*.whl

FROM ${BASE} AS gateway
COPY --from=gateway-packages /opt/gateway /opt/gateway
RUN groupadd --gid 10000 airlock \
    && useradd --uid 10000 --gid 10000 --no-create-home --home-dir /var/lib/airlock --shell /usr/sbin/nologin airlock \
    && install -d -o airlock -g airlock -m 0750 /var/lib/airlock /run/airlock
ENV PATH=/opt/gateway/bin:$PATH PYTHONUNBUFFERED=1 AIRLOCK_CHANNEL_DIR=/run/airlock
WORKDIR /var/lib/airlock
VOLUME /var/lib/airlock
USER 10000:10000
EXPOSE 7443
LABEL airlock.kind="image"
ENTRYPOINT ["airlock"]
# Listen on every address of the container, which has a network of its own: publishing the port decides who can reach it,
# and compose.yaml publishes it on loopback. With `tls` in the configuration the flag has no effect.
CMD ["serve", "--config", "/var/lib/airlock/airlock.yaml", "--listen", "0.0.0.0:7443", "--insecure-plaintext"]
