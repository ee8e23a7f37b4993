"""Processes that begin at once: forks of one that has torch and the package loaded already.

Starting Python, torch and the package takes three seconds of processor time, and many tests need a process of
its own: for its signals, its exit code, its imports of plugins. Each has what a new process has (arguments,
environment, folder, pipes, no state of other tests), but for the imports, and it does not free every module at
its end. Training processes are forks, too, also those of commands in the test's own process (`Popen`).
`in_a_new_process` (tests/cli/command.py), tests/workers/test_local.py and tests/test_extending.py start from
nothing.
"""

import atexit
import contextlib
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from functools import cache, partial

SUREFOOT = "from surefoot.cli import main; main()"
WORKER = ["-m", "surefoot.lab.workers.worker"]
WORK = "import sys; from surefoot.lab.workers import worker; sys.exit(worker.main())"
LOADED = (
    "torch",
    "torch._dynamo",  # which an optimiser loads when it is first used
    "scipy.optimize",
    "matplotlib.font_manager",
    "rich.progress",
    "surefoot.cli.app",
    "surefoot.lab.workers.worker",
    "surefoot.lab.workers.local",
    "surefoot.lab.experiments.run",
    "surefoot.report.study",
    "surefoot.report.evaluation",
    "surefoot.serve.app",
    "surefoot.serve.server",
    "surefoot.evaluation.evaluate",
    "surefoot.lab.training.tune",
)


class Process:
    """A process as `subprocess.Popen` shows it, with text in its pipes.

    `new_workers`: its training processes start from nothing, without the plugins that it has loaded.
    `stderr`: where its errors go instead of into a pipe.
    """

    def __init__(
        self,
        code,
        arguments=(),
        *,
        cwd=None,
        environment=None,
        new_session=False,
        new_workers=False,
        stdin=False,
        stderr=None,
    ):
        self.args, self.returncode, self._lock = [code, *arguments], None, threading.Lock()
        request = {
            "code": code,
            "arguments": [str(each) for each in arguments],
            "cwd": str(cwd or os.getcwd()),  # noqa: PTH109 as it is given to a new process
            "environment": {**os.environ, **(environment or {})},
            "new_session": new_session,
            "new_workers": new_workers,
        }
        (out, to_out), (err, to_err), (status, to_status), (from_in, to_in) = (os.pipe() for _ in range(4))
        errors = to_err if stderr is None else stderr
        _server().send(json.dumps(request), [from_in, to_out, errors, to_status])
        for given in (from_in, to_out, to_err, to_status):
            os.close(given)
        self.stdin = os.fdopen(to_in, "w", buffering=1)
        if not stdin:
            self.stdin.close()
        self.stdout, self.stderr, self._status = (os.fdopen(each) for each in (out, err, status))
        self.pid = int(self._status.readline())

    def poll(self):
        """Its exit code, or None."""
        with self._lock:  # a thread may wait for it already
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
                self.returncode = int(self._status.readline())
            return self.returncode

    def wait(self, timeout=None):
        """Its exit code when it has ended."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.poll()

    def send_signal(self, number):
        """Send a signal, where it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """End it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """All that it still writes, when it has ended."""
        found = {}
        readers = [
            threading.Thread(target=lambda pipe=pipe: found.update({pipe: pipe.read()}))
            for pipe in (self.stdout, self.stderr)
            if not pipe.closed
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        self._close()
        return found.get(self.stdout, ""), found.get(self.stderr, "")

    def _close(self):
        for pipe in (self.stdin, self.stdout, self.stderr, self._status):
            pipe.close()

    def __del__(self):
        if hasattr(self, "_status"):
            self._close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self._close()


def run(code, *arguments, **options):
    """Its exit code and what it wrote, when it has ended."""
    with Process(code, arguments, **options) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Popen(subprocess.Popen):
    """`subprocess.Popen` where a training process is a fork of the warm one; anything else is started."""

    def __new__(cls, args, *_, **options):
        if args[1:] != WORKER:
            return super().__new__(cls)
        return Process(WORK, environment=options["env"], new_session=True, stdin=True, stderr=2)


class _Server:
    """A connection to the process that forks, which all of pytest's processes share; it ends with the last of them."""

    def __init__(self):
        address = f"\0surefoot-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
        self.process = None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            try:
                listening.bind(address)
            except OSError as error:  # another process has started it
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                listening.listen()
                number = listening.fileno()
                command = [sys.executable, __file__, str(number)]
                self.process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        self._connect(address)
        atexit.register(self.close)

    def _connect(self, address):
        end = time.monotonic() + 10
        while True:
            try:
                return self.socket.connect(address)
            except ConnectionRefusedError:  # it does not listen yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def send(self, request, descriptors):
        socket.send_fds(self.socket, [request.encode()], descriptors)

    def close(self):
        self.socket.close()
        if self.process is not None:
            self.process.wait()


@cache
def _server():
    return _Server()


def serve(number):
    """Fork for each request, and report when each fork has ended."""
    sys.path[0] = ""
    for name in LOADED:
        with contextlib.suppress(ModuleNotFoundError):  # torch, which is optional
            importlib.import_module(name)
    # For signals Arrow keeps a pipe, which a training process would close.
    importlib.import_module("pyarrow").enable_signal_handlers(False)
    # torch unregisters its operators at the end of a process, which takes a fork 40 ms.
    for each in list(weakref.finalize._registry):
        each.atexit = False
    gc.collect()
    gc.freeze()
    listening = socket.socket(fileno=number)
    connections, forks = {_accepted(listening)}, {}
    while connections:
        for each in select.select([listening, *connections, *forks], [], [])[0]:
            if each is listening:
                connections.add(_accepted(listening))
            elif each in forks:
                _report_end(each, *forks.pop(each))
            elif not _forked(each, forks):
                connections.remove(each)
                each.close()


def _forked(connection, forks):
    """Whether there was a request: a fork carries it out."""
    text, pipes, _, _ = socket.recv_fds(connection, 2**20, 4)
    if not text:
        return False
    *streams, status = pipes
    child = os.fork()
    if child == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, 256)
        _become(json.loads(text))
    for stream in streams:
        os.close(stream)
    _write(status, child)
    forks[os.pidfd_open(child)] = child, status
    return True


def _report_end(watched, child, status):
    _write(status, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.close(watched)
    os.close(status)


def _write(status, value):
    with contextlib.suppress(BrokenPipeError):  # the test's process has ended
        os.write(status, f"{value}\n".encode())


def _accepted(listening):
    """The next connection; only from this user, for it runs any code."""
    while True:
        connection = listening.accept()[0]
        size = struct.calcsize("3i")
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if user == os.getuid():
            return connection
        connection.close()


def _become(request):
    """A new process: its folder, its environment, its signals, and its code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The streams of the process that forks may be of a file, in which one can seek; these are pipes.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if request["new_session"]:
        os.setsid()
    _use(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = ["-c", *request["arguments"]]
    if not request["new_workers"]:
        subprocess.Popen = _ForkedWorkers
    _exit_with(_run(compile(request["code"], "<string>", "exec")))


def _run(code):
    """Its exit code, as Python has it; an interrupt is left to Python, which ends by the signal."""
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except Exception:  # noqa: BLE001 the traceback of a process that ends
        traceback.print_exc()
        return 1
    return 0


def _exit_with(code):
    """End as Python does, but do not free every module, which takes a third of a second of processor time."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(code)


def _use(environment):
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    added = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in added if folder and folder not in sys.path]


class _ForkedWorkers(subprocess.Popen):
    """A training process is a fork; anything else is started."""

    def __init__(self, command, *, env=None, **options):
        if command[1:] == WORKER:
            options["preexec_fn"] = partial(_work, env)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            super().__init__(command, env=env, **options)


def _work(environment):
    """In the fork, where Popen has set up its pipes, instead of the new program."""
    gc.enable()
    os.closerange(3, 256)
    _use(environment)
    sys.stdin = open(0)  # noqa: SIM115
    code = 1
    try:
        from surefoot.lab.workers import worker

        code = worker.main()
    except BaseException:  # noqa: BLE001 the traceback of a process that ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
