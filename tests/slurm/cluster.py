"""A SLURM cluster of its own on this machine: munge, slurmdbd with MariaDB, slurmctld, and nodes.

python tests/slurm/cluster.py up DIR     start one; prints the SLURM_CONF to export
python tests/slurm/cluster.py down DIR   stop it

All its files lie in DIR and all its ports are on loopback. It needs root and Debian's packages (PACKAGES).
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PACKAGES = ("slurm-wlm", "munge", "slurmdbd", "mariadb-server")
PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch")
ATTEMPTS = 3
"""Times that a start is tried, each on other ports and with an empty folder."""
NODES = ("node1", "node2")
REQUEUE_SECONDS = 3.0
"""How long a requeued job waits at least."""
SLOTS = 2
"""CPUs each node claims: jobs are scheduled by it, and it need not be true."""

SLURM_CONF = """\
ClusterName=study
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={slurmctld}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmctldPidFile={dir}/slurmctld.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmdLogFile={dir}/slurmd-%n.log
SlurmdSpoolDir={dir}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=300
KillWait=20
MinJobAge=30
OverTimeLimit=0
MaxArraySize=41
JobRequeue=0
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass={dir}/munge.socket
AccountingStoragePort={slurmdbd}
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node1} CPUs={slots} RealMemory=8000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={node2} CPUs={slots} RealMemory=8000
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 OverSubscribe=NO
PartitionName=urgent Nodes=node1,node2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={slurmdbd}
SlurmUser=root
LogFile={dir}/slurmdbd.log
PidFile={dir}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={mariadb}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


def missing() -> str:
    """Return why no cluster can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "a SLURM of its own needs root"
    absent = [p for p in PROGRAMS if _program(p) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install {' '.join(PACKAGES)}"
    return ""


@dataclass
class Cluster:
    """A cluster whose files are in `folder`."""

    folder: Path
    requeued: dict[str, float] = field(default_factory=dict)
    """Jobs that wait after a requeue, and since when."""

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """Return the environment in which SLURM's commands speak to this cluster."""
        return os.environ | {"SLURM_CONF": str(self.conf)}

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command against this cluster and return what it prints."""
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def up(self) -> None:
        """Start everything and wait until both nodes take jobs; raises RuntimeError with their words."""
        for attempt in range(ATTEMPTS):
            try:
                self._up()
                return
            except (RuntimeError, TimeoutError, OSError) as error:
                self.down()
                words = f"{error}\n{self._words()}"
                if attempt + 1 == ATTEMPTS:
                    raise RuntimeError(f"the cluster did not start: {words}") from error
                print(f"starting the cluster again: {words}", file=sys.stderr)
                shutil.rmtree(self.folder)

    def _up(self) -> None:
        self._write_files()
        self._munge()
        self._database()
        self._start("slurmdbd", "-D")
        until(lambda: _listens(self.ports["slurmdbd"]), "slurmdbd")
        self._start("slurmctld", "-D", "-c", "-f", str(self.conf))
        until(lambda: _listens(self.ports["slurmctld"]), "slurmctld")
        for node in NODES:
            self.start_node(node)
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until both nodes take jobs and have none."""
        ask = ("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
        until(lambda: self.run(*ask, check=False).split() == ["idle"] * len(NODES), "idle nodes", 120)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._start("slurmd", "-D", "-N", node, "-f", str(self.conf), name=f"slurmd-{node}")

    def stop_node(self, node: str) -> None:
        """Kill the daemon of a node and all that runs there, as a power cut would: without a word."""
        jobs = self._jobs(node)
        self._kill(self.folder / f"slurmd-{node}.started")
        _kill_all(jobs)

    def hasten(self) -> None:
        """Let requeued jobs start soon; SLURM would have them wait for two minutes.

        Not at once: a job that starts in the second in which its credential was revoked is killed by SLURM.
        """
        lines = self.run("squeue", "--array", "--states=PD", "--noheader", "--format=%A %r").splitlines()
        waiting = [job for job, _, reason in (x.partition(" ") for x in lines) if reason == "BeginTime"]
        now = time.monotonic()
        self.requeued = {job: self.requeued.get(job, now) for job in waiting}
        for job, seen in self.requeued.items():
            if now - seen > REQUEUE_SECONDS:
                self.run("scontrol", "update", f"jobid={job}", "starttime=now", check=False)

    def clear(self) -> None:
        """Kill all jobs and wait until the nodes are free again."""
        self.run("scancel", "--user=root", check=False)
        self.run("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        until(lambda: not self.run("squeue", "--noheader").strip(), "an empty queue")

    def down(self) -> None:
        """Kill everything: daemons, jobs, and what keeps the jobs."""
        jobs = self._jobs()
        names = ("slurmctld", *(f"slurmd-{node}" for node in NODES), "slurmdbd", "mariadbd", "munged")
        for name in names:
            self._kill(self.folder / f"{name}.started")
        _kill_all([*jobs, *self._jobs()])

    def _jobs(self, node: str = "") -> list[psutil.Process]:
        """All processes of jobs (of one node), after those of SLURM's that keep them."""
        jobs, keepers = [], set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = process.environ()
                mine = environment.get("SLURM_CONF") == str(self.conf) and "SLURM_JOB_ID" in environment
                if mine and (not node or environment.get("SLURMD_NODENAME") == node):
                    jobs.append(process)
                    keepers |= {p for p in process.parents() if p.name().startswith("slurmstepd")}
        return [*keepers, *jobs]

    def describe(self) -> str:
        """Return the queue, the nodes, and the last words of the daemons."""
        asked = (
            ("date",),
            ("squeue", "--array", "--long", "--start"),
            ("squeue", "--array", "--long"),
            ("sinfo", "-N", "--long"),
            ("sinfo", "-R"),
        )
        return "\n".join([*(self.run(*command, check=False) for command in asked), self._words(60)])

    def _words(self, n: int = 5) -> str:
        """The last lines of what each daemon printed and logged."""
        found = []
        for file in sorted([*self.folder.glob("*.out"), *self.folder.glob("*.log")]):
            if lines := file.read_text(errors="replace").splitlines()[-n:]:
                found += [f"{file.name}: {line}" for line in lines]
        return "\n".join(found)

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        names = ("slurmctld", "slurmdbd", "node1", "node2", "mariadb")
        self.ports = dict(zip(names, _free_ports(len(names)), strict=True))
        values = {"dir": self.folder, "host": socket.gethostname(), "slots": SLOTS, **self.ports}
        self.conf.write_text(SLURM_CONF.format(**values))
        dbd = self.folder / "slurmdbd.conf"
        dbd.write_text(SLURMDBD_CONF.format(**values))
        dbd.chmod(0o600)

    def _munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        names = {
            "socket": "socket",
            "key-file": "key",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        self.folder.chmod(0o755)
        files = [f"--{option}={self.folder}/munge.{end}" for option, end in names.items()]
        self._start("munged", "--foreground", "--force", *files)
        until((self.folder / "munge.socket").exists, "munged")

    def _database(self) -> None:
        data, sock = self.folder / "mariadb", self.folder / "mariadb.socket"
        (self.folder / "tmp").mkdir(exist_ok=True)
        self.run("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db",
                 f"--tmpdir={self.folder}/tmp")  # fmt: skip
        self._start(
            "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={sock}",
            f"--port={self.ports['mariadb']}", "--bind-address=127.0.0.1", "--innodb-lock-wait-timeout=900",
            f"--pid-file={self.folder}/mariadb.pid",
        )  # fmt: skip
        make = "CREATE USER slurm@'%' IDENTIFIED BY 'slurm'; GRANT ALL ON slurm.* TO slurm@'%';"
        command = ["mariadb", "--no-defaults", f"--socket={sock}", "-e", make]
        until(lambda: subprocess.run(command, capture_output=True).returncode == 0, "mariadbd")

    def _start(self, program: str, *args: str, name: str = "") -> None:
        name = name or program
        path = _program(program)
        assert path, program
        with open(self.folder / f"{name}.out", "ab") as out:
            process = subprocess.Popen(
                [path, *args], env=self.environment(), stdout=out, stderr=out, start_new_session=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        (self.folder / f"{name}.started").write_text(str(process.pid))

    def _kill(self, file: Path) -> None:
        """Kill a daemon and all that descends from it; its data are thrown away with the folder."""
        with contextlib.suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
            main = psutil.Process(int(file.read_text()))
            if main.environ().get("SLURM_CONF") == str(self.conf):  # and not a stranger with its number
                _kill_all([*main.children(recursive=True), main])
        file.unlink(missing_ok=True)


def _kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        until(lambda: all(map(_gone, processes)), "their end", 20)


def _gone(process: psutil.Process) -> bool:
    """Whether a process has ended; an init that reaps late is not waited for."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], object], what: str, seconds: float = 300) -> None:
    """Wait for something; raises TimeoutError that names it."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come in {seconds:.0f} s")
        time.sleep(0.2)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(n: int) -> list[int]:
    probes = [socket.socket() for _ in range(n)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in ("up", "down"):
        print(__doc__)
        return 2
    cluster = Cluster(Path(sys.argv[2]).resolve())
    if sys.argv[1] == "down":
        cluster.down()
        return 0
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    cluster.up()
    print(f"export SLURM_CONF={cluster.conf}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
