"""The engine on a Ray cluster: a real one of two nodes on this machine, one of which is killed."""

import importlib.util
import os
import signal
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Recipe, Teachers
from surefoot.lab.store.files import State
from surefoot.lab.store.remote import Remote
from surefoot.lab.store.store import Store
from surefoot.lab.variants import Distilled
from surefoot.lab.workers.jobs import Job, jobs_of
from surefoot.lab.workers.produce import open_context, produce
from surefoot.lab.workers.ray import Cluster, Resources, alive, execute, resources_of
from surefoot.predictions.ray_cluster import load_ray
from tests.small_images import write_task
from tests.workers.orders import SMALL, events_of, order, specs, started

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra 'ray'")
PATIENT = Recipe(
    network="patient:build", view=8, resize=8, augmentation="none", epochs=2, batch=2, learning_rate=0.01
)  # 14 steps per epoch
STUDENT = replace(SMALL, variant=Distilled(teachers=Teachers(SMALL, (0, 1))))
JOBS = (Job(STUDENT, 9), Job(SMALL, 0, ("energy",)), Job(SMALL, 1))  # the student first, to be put off
ENDLESS = replace(SMALL, epochs=1_000_000)
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_log_monitor": False}

# A user's network that stays in the middle of its second epoch, where it is told to, until it may go on.
PATIENCE = """
import os, time
from pathlib import Path
from torch import nn

class Patient(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, classes))
        self.steps = 0

    def forward(self, images):
        self.steps += self.training
        if self.steps == 20 and "PATIENT" in os.environ:
            folder = Path(os.environ["PATIENT"])
            (folder / f"waiting-{os.getpid()}").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)
        return self.layers(images)

def build(classes):
    return Patient(classes)
"""


class TwoNodes:
    """A head, where the driver is, and another node; each with a cache of its own."""

    def __init__(self, folder):
        from ray.cluster_utils import Cluster as Nodes

        self.folder = folder
        (folder / "patient.py").write_text(PATIENCE)
        self.nodes = Nodes(
            initialize_head=True,
            head_node_args={**NODE, "include_dashboard": False, "env_vars": self.variables("head")},
        )
        self.other = self.nodes.add_node(**NODE, num_gpus=1, env_vars=self.variables("other"))
        self.address = self.nodes.address

    def variables(self, name):
        paths = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        cache = str(self.folder / name)
        return {"SUREFOOT_CACHE": cache, "PATIENT": str(self.folder), "PYTHONPATH": paths}

    @property
    def raylet(self):
        """The process of the other node, whose children make networks."""
        return self.other.all_processes["raylet"][0].process.pid

    def kill(self):
        """All of the other node at once, as when its machine loses power."""
        for pid in [self.raylet, *children(self.raylet)]:
            os.kill(pid, signal.SIGKILL)


def parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None  # it has ended


def children(pid):
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if parent(each.name) == pid]


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """Connected once for all tests, as `surefoot run` does for all its tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # 127.0.0.1 alone
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
        # A process imports torch, which takes seconds: keep each for all tests, and start none without work.
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "600000")
        patch.setenv("RAY_enable_worker_prestart", "0")
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        patch.setattr(
            "surefoot.lab.workers.ray.SECONDS_BETWEEN_CHECKS", 0.1
        )  # networks train until Ctrl-C is seen
        nodes = TwoNodes(tmp_path_factory.mktemp("caches"))
        try:
            with Cluster(address=nodes.address).connected():
                yield nodes
        finally:
            nodes.nodes.shutdown()


@pytest.fixture(scope="module")
def by_local(tmp_path_factory):
    """What the local engine makes of the same jobs."""
    wanted = replace(order(tmp_path_factory.mktemp("local")), jobs=JOBS)
    events_of(started(wanted))
    return files(wanted)


def files(wanted, networks=None):
    """Every network's weights, logits and scores as bytes, by seed and name."""
    store, found = Store(Path(wanted.store)), {}
    for spec in networks or specs(wanted):
        assert store.is_done(spec), spec
        for path in store.folder(spec).iterdir():
            if path.suffix in (".npz", ".safetensors"):
                found[spec.seed, path.name] = path.read_bytes()
    return found


@needs_ray
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nowhere", r"^the address is 'nowhere'; allowed: HOST:PORT"),
        ("127.0.0.1:0", r"^the address is '127.0.0.1:0'; allowed: HOST:PORT"),
        ("127.0.0.1:1", r"^no Ray cluster at '127.0.0.1:1': Connection refused; allowed: HOST:PORT"),
        (f"{'h' * 70}:1", r"^no Ray cluster at 'h{70}:1': .*label.*; allowed: HOST:PORT"),
        ("ray://127.0.0.1:1", r"^no Ray cluster at 'ray://127.0.0.1:1': Connection refused"),
    ],
)
def test_an_address_where_no_cluster_is(address, said, tmp_path):
    with pytest.raises(InputError, match=said):
        execute(order(tmp_path), cluster=Cluster(address=address), on_event=lambda _: None)


@needs_ray
def test_the_same_as_the_local_engine_to_the_bit(two_nodes, by_local, tmp_path):
    wanted, events = replace(order(tmp_path), jobs=JOBS), []
    execute(wanted, cluster=Cluster(address=two_nodes.address), on_event=events.append)
    assert files(wanted) == by_local
    assert len(by_local) == 3 * 5 + 1
    counts = Counter(event["event"] for event in events)
    assert counts == {"ready": 1, "start": 3, "epoch": 3 * 2 * 2, "done": 3}
    told = [(event["event"], event["seed"]) for event in events if "seed" in event]
    assert told.index(("start", 9)) > max(told.index(("done", seed)) for seed in (0, 1))
    epoch = next(event for event in events if event["event"] == "epoch")
    assert epoch.keys() >= {"job", "phase", "epoch", "epochs", "loss", "seconds"}
    assert list(tmp_path.glob(".*")) == []


@needs_ray
def test_a_store_at_a_url_that_every_node_has_a_copy_of(two_nodes, by_local, tmp_path):
    remote = Remote(f"file://{tmp_path}/bucket")
    wanted = replace(order(tmp_path / "copy"), jobs=JOBS, remote=remote.location, cache=None)
    execute(wanted, cluster=Cluster(address=two_nodes.address), on_event=lambda _: None)
    remote.sync(specs(wanted), Store(Path(wanted.store)))
    assert files(wanted) == by_local
    copies = [remote.local_copy(two_nodes.folder / name) for name in ("head", "other")]
    student = specs(wanted)[0]
    (maker,) = (copy for copy in copies if copy.is_done(student))
    assert all(maker.is_done(teacher) for teacher in student.needs()), "made there, or fetched"


@needs_ray
def test_a_share_of_a_gpu_goes_where_there_is_one_and_a_slow_queue_loses_no_event(
    two_nodes, tmp_path, monkeypatch
):
    """Ray is told of a GPU that is not there; the network is trained on the CPU all the same."""
    monkeypatch.setattr("surefoot.lab.workers.ray.SECONDS_TO_ANSWER", 0)  # the queue never answers so soon
    wanted, events = order(tmp_path), []
    cluster = Cluster(address=two_nodes.address, cpus=0.25, gpus=0.25)
    parents = set()

    def on_event(event):
        events.append(event["event"])
        if event["event"] == "start":
            parents.add(parent(event["pid"]))

    execute(wanted, cluster=cluster, on_event=on_event)
    assert Counter(events) == {"ready": 1, "start": 1, "epoch": 2 * 2, "done": 1}
    assert parents <= {two_nodes.raylet, None}


@needs_ray
def test_an_error_of_one_network_is_said_and_stops_the_others(two_nodes, tmp_path):
    wild = replace(SMALL, learning_rate=1e30)
    wanted = replace(order(tmp_path), jobs=(*jobs_of(wild, (0,)), *jobs_of(ENDLESS, (1,))))
    with pytest.raises(InputError, match="training diverged in epoch"):
        execute(wanted, cluster=Cluster(address=two_nodes.address), on_event=lambda _: None)
    assert Store(tmp_path).state(specs(wanted)[1]) in (State.STOPPED, State.MISSING)


@needs_ray
def test_ctrl_c_saves_a_checkpoint_that_the_same_order_goes_on_from(two_nodes, tmp_path):
    wanted, epochs = order(tmp_path, ENDLESS), []

    def on_event(event):
        if event["event"] == "epoch":
            epochs.append(event["epoch"])
            raise KeyboardInterrupt  # as Python does on SIGINT, which processes of pytest-xdist ignore

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            execute(wanted, cluster=Cluster(address=two_nodes.address), on_event=on_event)
        assert Store(tmp_path).state(specs(wanted)[0]) is State.STOPPED, "nobody is at it any more"
    assert epochs[0] == 1 < epochs[1]


@needs_ray
def test_a_node_that_does_not_see_the_store_is_named(two_nodes, tmp_path):
    wanted = replace(order(tmp_path), remote="memory://only-here")
    with pytest.raises(
        InputError, match=r"^node .* does not see the store memory://only-here; needed: a folder"
    ):
        execute(wanted, cluster=Cluster(address=two_nodes.address), on_event=lambda _: None)


@needs_ray
def test_a_node_that_does_not_see_the_data_is_named(two_nodes, tmp_path):
    wanted = replace(order(tmp_path), root=str(tmp_path / "gone"))
    with pytest.raises(
        InputError, match=r"^node .* does not see .*/gone; needed: the same path on every node"
    ):
        execute(wanted, cluster=Cluster(address=two_nodes.address), on_event=lambda _: None)


@needs_ray
def test_a_node_killed_while_it_trains_costs_no_network(two_nodes, tmp_path, capfd, monkeypatch):
    """Last, for it leaves one node. Both networks wait in the middle; then the node of one of them is killed."""
    task = str(write_task(tmp_path))
    wanted, events = replace(order(tmp_path / "ray", PATIENT, seeds=(0, 1)), task=task), []
    killed = []

    def on_event(event):
        events.append(event)

    def kill():
        # What a node has posted before the event queue answers is lost with it: wait for its "start", too.
        pids = soon(lambda: [pid for pid in waiting() & begun() if parent(pid) == two_nodes.raylet])
        two_nodes.kill()
        killed.extend(pids)
        soon(lambda: len(alive(sys.modules["ray"])) == 1)  # the cluster has noticed
        (two_nodes.folder / "go").touch()

    def waiting():
        return {int(path.name.partition("-")[2]) for path in two_nodes.folder.glob("waiting-*")}

    def begun():
        return {event["pid"] for event in list(events) if event["event"] == "start"}

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        execute(wanted, cluster=Cluster(address=two_nodes.address), on_event=on_event)
        killing.result()
    starts = [(event["pid"], event["seed"]) for event in events if event["event"] == "start"]
    (lost,) = {seed for pid, seed in starts if pid in killed}
    assert [seed for _, seed in starts].count(lost) == 2, "begun by one node, and again by the other"
    (note,) = (event["text"] for event in events if event["event"] == "note")
    assert "was lost" in note
    assert capfd.readouterr().out == "", "results are printed there, and nothing of Ray's"
    monkeypatch.syspath_prepend(two_nodes.folder)
    expected = replace(wanted, store=str(tmp_path / "unharmed"))
    networks = make_here(expected)
    found = files(wanted, networks)
    assert found == files(expected, networks)
    assert len(found) == 2 * 5


def make_here(wanted):
    """The order's networks without any engine, in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    context = open_context(wanted)
    networks = wanted.specs(context.task.name, context.task.identity)
    for spec in networks:
        produce(spec, context, Store(Path(wanted.store)))
    torch.set_num_threads(threads)
    return networks


def soon(look, seconds=300.0):
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'surefoot\[ray\]'"):
        load_ray("auto")


@pytest.mark.parametrize("share", [{"cpus": -1}, {"cpus": 1.5}, {"gpus": 2.5}, {"gpus": float("nan")}])
def test_shares_that_ray_does_not_know(share):
    with pytest.raises(InputError, match=r"per network are .*; allowed: up to 1, or a whole number"):
        Cluster(**share)


GPU, CPU = {"Resources": {"CPU": 8.0, "GPU": 1.0}}, {"Resources": {"CPU": 8.0}}


@pytest.mark.parametrize(
    ("gpus", "device", "nodes", "share"),
    [
        (None, "auto", [CPU, GPU], Resources("cuda", 1.0, 0.5)),
        (None, "auto", [CPU], Resources("cpu", 1.0, 0.0)),
        (None, "cpu", [GPU], Resources("cpu", 1.0, 0.0)),
        (0.25, "auto", [CPU], Resources("cuda", 1.0, 0.25)),  # a node that has one may yet come
        (0.0, "auto", [GPU], Resources("cpu", 1.0, 0.0)),
        (None, "cuda", [CPU], Resources("cuda", 1.0, 0.5)),
    ],
)
def test_what_a_network_takes(gpus, device, nodes, share):
    assert resources_of(Cluster(gpus=gpus), device, dict(enumerate(nodes))) == share


def test_a_gpu_of_nothing_is_refused():
    with pytest.raises(InputError, match="GPUs per network are 0"):
        resources_of(Cluster(gpus=0.0), "cuda", {})


def test_a_share_fits_a_node_that_has_it():
    assert Resources("cuda", 1.0, 0.25).fits(GPU)
    assert not Resources("cuda", 1.0, 0.25).fits(CPU)
    assert not Resources("cpu", 16.0, 0.0).fits(CPU)
