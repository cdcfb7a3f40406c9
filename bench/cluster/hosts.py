"""Creates hosts as network namespaces, each with one rate-limited link to one switch, and runs mpirun and torchrun on them.

Needs root, ip and tc. Everything is removed when the `with` block ends, also on SIGINT, SIGTERM and SIGHUP. The next run removes
what a killed run left behind.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

AGENT = pathlib.Path(__file__).resolve().parent / "agent.sh"
PREFIX = "sparsesync"
NAME = re.compile(rf"{PREFIX}(\d+)-\w+")
NETWORK = "10.213.77"
PORT = 29571  # port of the torchrun rendezvous, on the first host


def sh(*words, check=True):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=check).stdout


class Hosts:
    """`count` hosts. Host i is the namespace names[i], with the interface eth0 and the address 10.213.77.(i + 1)."""

    def __init__(self, count, burst=32_768, queue=524_288):
        """`burst` and `queue` are bytes: how much a link may send at once after a pause, and how much it queues before it drops packets."""
        self.count, self.burst, self.queue = count, burst, queue
        self.switch = f"{PREFIX}{os.getpid()}-switch"
        self.names = [f"{PREFIX}{os.getpid()}-{i}" for i in range(count)]
        self._kept = {}

    def __enter__(self):
        for wanted in (signal.SIGTERM, signal.SIGHUP):
            self._kept[wanted] = signal.signal(wanted, self._stop)
        try:
            self._remove(lambda process: process != os.getpid() and not pathlib.Path(f"/proc/{process}").exists())
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for each in (signal.SIGINT, *self._kept):
            signal.signal(each, signal.SIG_IGN)  # nothing may interrupt the removal
        self._remove(lambda process: process == os.getpid())
        for each, handler in self._kept.items():
            signal.signal(each, handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @staticmethod
    def _stop(number, _):
        raise SystemExit(128 + number)

    @staticmethod
    def _remove(is_ours):
        for line in sh("ip", "netns", "list").splitlines():
            name = line.split()[0]
            match = NAME.fullmatch(name)
            if not match or not is_ours(int(match.group(1))):
                continue
            for process in sh("ip", "netns", "pids", name, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            sh("ip", "netns", "del", name, check=False)  # also deletes its interfaces
            for folder in pathlib.Path(tempfile.gettempdir()).glob(f"ompi.{name}.*"):  # left by a killed daemon
                shutil.rmtree(folder, ignore_errors=True)

    def _make(self):
        sh("ip", "netns", "add", self.switch)
        inside = ("ip", "-n", self.switch)
        sh(*inside, "link", "set", "lo", "up")
        sh(*inside, "link", "add", "br0", "type", "bridge")
        sh(*inside, "addr", "add", f"{NETWORK}.254/24", "dev", "br0")
        sh(*inside, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
            sh("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
            sh("ip", "-n", name, "addr", "add", f"{NETWORK}.{i + 1}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            sh(*inside, "link", "set", f"port{i}", "master", "br0", "up")

    def shape(self, rate_bps, cut=False):
        """Limits every link to this rate in each direction. None: no limit.

        `cut`: sockets send packets of wire size, so that the interface counters include every packet's headers. Otherwise the kernel moves
        several packets as one, and only the shaper counts all headers. Cutting more than doubles the CPU time.
        """
        for i, name in enumerate(self.names):
            for namespace, device in ((name, "eth0"), (self.switch, f"port{i}")):
                sh("ip", "-n", namespace, "link", "set", device, "gso_max_segs", 1 if cut else 65535)
                sh("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", check=False)
                if rate_bps:
                    sh("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", int(rate_bps),
                       "burst", self.burst, "limit", self.queue)

    def counters(self):
        """Returns [(bytes sent, bytes received)] of each host's interface so far."""
        result = []
        for name in self.names:
            (link,) = json.loads(sh("ip", "-n", name, "-s", "-j", "link", "show", "dev", "eth0"))
            result.append((link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]))
        return result

    def shapers(self, i):
        """Returns the tc commands that print the bytes that host i's link passed: those that it sent, and those that it received.

        Headers of every packet are counted, even if the kernel moves several packets as one.
        """
        show = ("-s", "-j", "qdisc", "show", "dev")
        return [["tc", "-n", namespace, *show, device]
                for namespace, device in ((self.names[i], "eth0"), (self.switch, f"port{i}"))]

    def dropped(self):
        """Returns the number of packets that the links' queues dropped so far."""
        total = 0
        for i, name in enumerate(self.names):
            for namespace, device in ((name, "eth0"), (self.switch, f"port{i}")):
                for queue in json.loads(sh("tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device)):
                    total += queue.get("drops", 0)
        return total

    def network(self, rate_bps):
        """Returns the description of the network for a result."""
        control = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
        return {"rate_bps": rate_bps, "burst_bytes": self.burst, "queue_bytes": self.queue, "congestion_control": control}

    @staticmethod
    def mpi_settings():
        """Returns the description of MPI for a result."""
        return {"mpi": sh("mpirun", "--version").splitlines()[0], "mpi_yield_when_idle": 1}

    def mpirun(self, *command, mca=(), timeout=300, environment=None):
        """Runs a command with one process per host and returns its output. `mca` holds pairs of a parameter and a value. `timeout` is in
        seconds.
        """
        parameters = [("plm_rsh_agent", AGENT), ("plm_rsh_no_tree_spawn", 1), ("btl", "tcp,self"), ("rtc", "^hwloc"),
                      ("mpi_yield_when_idle", 1), ("btl_tcp_if_include", f"{NETWORK}.0/24"),
                      ("oob_tcp_if_include", f"{NETWORK}.0/24"), *mca]
        words = ["ip", "netns", "exec", self.switch, "mpirun", "-np", self.count, "--map-by", "node", "--bind-to", "none",
                 "--host", ",".join(f"{name}:1" for name in self.names)]
        for name, value in parameters:
            words += ["--mca", name, value]
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       **(environment or {})}
        result = subprocess.run([*map(str, words), *map(str, command)], capture_output=True, text=True, check=False,
                                timeout=timeout, env=environment)
        if result.returncode != 0:
            raise RuntimeError(f"mpirun ended with status {result.returncode}:\n{result.stdout}{result.stderr}")
        return result.stdout

    def torchrun(self, *command, timeout=300, environment=None):
        """Runs a Python program with arguments, one process per host, each under its host's torchrun. `timeout` is in seconds.

        Uses this process's interpreter, which needs PyTorch.
        """
        # Shared memory would bypass the links.
        interfaces = {"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0", "UCX_TLS": "tcp,self"}
        environment = {**os.environ, **interfaces, **(environment or {})}
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder) / name for name in self.names]
            agents = []
            for i, (name, file) in enumerate(zip(self.names, files, strict=True)):
                words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", self.count, "--nproc-per-node", 1,
                         "--node-rank", i, "--master-addr", f"{NETWORK}.1", "--master-port", PORT,
                         "--monitor-interval", 1, *command]
                with open(file, "w", encoding="utf-8") as output:
                    # exec: the signal then reaches torchrun, which ends its rank.
                    agents.append(subprocess.Popen([str(AGENT), name, "exec " + shlex.join(map(str, words))],
                                                   stdout=output, stderr=subprocess.STDOUT, env=environment))
            try:
                failed, how = _first_failure(agents, time.monotonic() + timeout)
            finally:
                for agent in agents:
                    agent.terminate()
                for agent in agents:
                    agent.wait()
            said = [file.read_text(encoding="utf-8") for file in files]
        if failed is not None:
            raise RuntimeError(f"torchrun of host {failed} {how}:\n{said[failed]}")
        return "".join(said)


def _first_failure(agents, end):
    """Waits for all processes. Returns the index of one that failed or exceeded the time, and a description; None if all succeeded."""
    while True:
        statuses = [agent.poll() for agent in agents]
        for i, status in enumerate(statuses):
            if status not in (None, 0):
                return i, f"ended with status {status}"
        if None not in statuses:
            return None, ""
        if time.monotonic() > end:
            return statuses.index(None), "did not end in time"
        time.sleep(0.2)
