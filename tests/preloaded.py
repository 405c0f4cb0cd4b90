"""Processes forked from one that has imported torch and its like, which takes seconds; ours is imported in each anew.

For tests of what a command or a notebook says, and below torchrun. What is killed itself is started as users do it.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from threeml_core.foundation.files import PROJECT_ROOT

LIBRARIES = (
    "IPython",
    "ipykernel.kernelapp",
    "ipykernel.zmqshell",
    "latex2mathml.converter",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "nbconvert",
    "papermill.__main__",
    "papermill.execute",
    "pandas",
    "pyarrow.parquet",
    "regex",
    "scipy.stats",
    "sklearn.cluster",
    "torch",
    "torch.utils.flop_counter",
    "transformers.models.auto.modeling_auto",
    "transformers.models.roberta.modeling_roberta",
    "transformers.models.roberta_prelayernorm.modeling_roberta_prelayernorm",
)

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({socket!r})
asked = json.dumps([[{entry!r}, *sys.argv[1:]], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
server.sendall(asked)
child = int(server.recv(20))
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter interrupts a kernel before it asks it to leave
signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
os._exit(int(server.recv(20) or 1))
"""


class Preloaded:
    """The process to fork from, between `with` and its end.

    Args:
        folder: for its socket.
    """

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "socket"

    def __enter__(self) -> Preloaded:
        command = [sys.executable, "-m", "tests.preloaded", str(self.socket)]
        environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None and self.process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def script(self, path: Path, entry: str) -> Path:
        """Write a script that calls `entry`, such as `threeml_core.__main__:main`, in a forked process."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CLIENT.format(python=sys.executable, socket=str(self.socket), entry=entry))
        path.chmod(0o755)
        return path

    def run(self, stage: str, parameters: Mapping[str, object]) -> subprocess.CompletedProcess[str]:
        """What `threeml <stage>` with these parameters says."""
        script = self.script(self.socket.with_name("threeml"), "threeml_core.__main__:main")
        arguments = [part for name, value in parameters.items() for part in ("-p", name, str(value))]
        return subprocess.run([script, stage, *arguments], cwd=PROJECT_ROOT, capture_output=True, text=True)

    def python(self) -> Path:
        """As `python -u` with a script or with `-m` and a module."""
        return self.script(self.socket.with_name("python"), "tests.preloaded:as_python")


def as_python() -> None:
    """In the forked process: run what is named."""
    flags = [argument for argument in sys.argv[1:] if argument != "-u"]
    if flags[0] == "-m":
        sys.argv = flags[1:]
        runpy.run_module(flags[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = flags
        runpy.run_path(flags[0], run_name="__main__")


def _received(connection: socket.socket) -> tuple[list[int], list[str], dict[str, str], str]:
    head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    size, asked = int.from_bytes(head, "big"), b""
    while len(asked) < size:
        asked += connection.recv(size - len(asked))
    return [list(descriptors), *json.loads(asked)]  # type: ignore[return-value]


def _run(connection: socket.socket) -> int:
    """In the forked process: call what was asked for; the exit status."""
    descriptors, (entry, *arguments), environment, folder = _received(connection)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    connection.sendall(str(os.getpid()).encode())

    def leave_with_client() -> None:
        if connection.recv(1) == b"":
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=leave_with_client, daemon=True).start()
    module, _, function = entry.partition(":")
    sys.argv = [module, *arguments]
    try:
        getattr(importlib.import_module(module), function)()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(address: Sequence[str]) -> None:
    """Import, then fork for every connection, until the process that started this one closes its end or is gone."""
    for name in [name for name in sys.modules if name.startswith("threeml_core")]:
        del sys.modules[name]
    for name in LIBRARIES:
        importlib.import_module(name)
    server = socket.socket(socket.AF_UNIX)
    server.bind(*address)
    server.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            status = _run(connection)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            connection.sendall(str(status).encode())
            os._exit(status)
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
