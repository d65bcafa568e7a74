"""Starts and stops the programs for the tests of this folder: an agent with its limits, and programs around it."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
AGENT = os.environ["WEIR_AGENT"]
PATIENCE = 20


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def wait_for_port(port, process):
    """Waits until the program listens. Raises an error if the program ends before."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args} does not listen on {port}")


class Running:
    """A program that ends together with its `with` block."""

    def __init__(self, words, port, **more):
        self.port = port
        self.process = subprocess.Popen([str(word) for word in words], **more)
        try:
            wait_for_port(port, self.process)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Agent(Running):
    """An agent. `limits` has the number of requests per day for each path."""

    def __init__(self, app_port, limits=None, flags=(), per=None):
        self.control, self.telemetry = free_port(), free_port()
        words = [AGENT, "--listen", f"127.0.0.1:{(port := free_port())}", "--upstream", f"127.0.0.1:{app_port}"]
        words += ["--control", f"127.0.0.1:{self.control}", "--telemetry", f"127.0.0.1:{self.telemetry}"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
        super().__init__(words + ["--workers", "2", "--log-level", "warn", *flags], port, env=clean)
        self.limit(limits or {}, per or {})

    def limit(self, limits, per):
        rules = [
            {
                "name": f"rule-{number}",
                "action": "Limit",
                "match": [{"paths": [path]}],
                "per": per.get(path, "Request"),
                "limits": [{"name": "day", "strategy": "SlidingWindowLog", "requests": most, "periodMillis": 86_400_000}],
            }
            for number, (path, most) in enumerate(limits.items())
        ]
        policy = {"uid": "c", "namespace": "c", "name": "clients", "revision": "1", "mode": "Enforce", "rules": rules}
        snapshot = {"wireVersion": 1, "sequence": 1, "revision": "1", "policies": [policy]}
        url = f"http://127.0.0.1:{self.control}/v1/config"
        request = urllib.request.Request(url, json.dumps(snapshot).encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            assert response.status == 200

    def wait_until_nobody_is_connected(self):
        deadline = time.monotonic() + PATIENCE
        while self.connections():
            assert time.monotonic() < deadline, f"{self.connections()} connections are still open"
            time.sleep(0.05)

    def connections(self):
        """Client connections that the agent has open."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.telemetry}/metrics", timeout=PATIENCE) as response:
            for line in response.read().decode().splitlines():
                if line.startswith("weir_connections "):
                    return int(line.split()[1])
        raise RuntimeError("weir_connections is not among the metrics")


class Node(Running):
    """The app that responds with a description of the request; see app.mjs."""

    def __init__(self, http2=False):
        port = free_port()
        super().__init__(["node", os.path.join(HERE, "app.mjs"), port, "h2" if http2 else "h1"], port)


def run(words, **more):
    """Runs a program and returns its output. Raises an error if the program fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=120, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f"{words} failed with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="weir-clients-") as path:
        os.chmod(path, 0o755)
        yield path
