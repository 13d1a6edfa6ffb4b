"""The computed tables of docs/clusters.md, the scripts that they rest on, and the examples of job files."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torchvision
import yaml
from torch import nn

from fastmoco import methods

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import rates  # noqa: E402
import scaling  # noqa: E402

# Invented: only relations between numbers are tested.
MEASURED = {16: 800, 32: 1200, 64: 1600, 128: 1800, 256: 1900, 512: 2000}
SHARES = {"forward": 0.4, "backward": 0.5, "optimiser": 0.1}
ALONE = scaling.Rates(
    {
        "rates": [
            {"batch": batch, "images_per_second": rate, "peak_gib": 1.0, "shares": SHARES}
            for batch, rate in MEASURED.items()
        ]
    }
)
FAST, SLOW = scaling.NETWORKS


@pytest.fixture(scope="module")
def traffic():
    return scaling.count(methods.fast_moco)


def steps(traffic, total, network=FAST):
    found = (scaling.step(traffic, ALONE, ALONE, gpus, total, network) for gpus in scaling.GPUS)
    return [each for each in found if each is not None]


def test_gradients_are_the_parameters_of_the_online_branch_in_float32(traffic):
    assert traffic.gradients == 4 * (23_508_032 + 12_601_344 + 2_100_736) == 4 * 38_210_112


def test_every_norm_is_passed_as_often_as_a_branch_sees_a_view(traffic):
    """The norms of torchvision's own network, three of the projector, one of the predictor; two views a branch."""
    encoder = [m.num_features for m in torchvision.models.resnet50().modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(encoder) == 53
    online = [*encoder, 2048, 2048, 2048, 512]
    target = [*encoder, 2048, 2048, 2048]
    assert sorted(norm.channels for norm in traffic.norms if norm.learns) == sorted(2 * online)
    assert sorted(norm.channels for norm in traffic.norms if not norm.learns) == sorted(2 * target)
    # 226 passes forward, of which the 114 of the online branch come back.
    assert (len(traffic.norms), sum(norm.learns for norm in traffic.norms)) == (2 * (57 + 56), 2 * 57)


def test_targets_are_those_of_both_views(traffic):
    assert traffic.targets == 2 * 2048 * 4
    # Of 17 G multiply-adds of a forward pass, 8.8 G are made when the targets are on their way.
    assert traffic.online == pytest.approx(8.783 / (8.783 + 8.199), abs=1e-3)


def test_norms_that_share_a_pass_with_their_target_count_once():
    """SimSiam has no second branch: what its projector makes is the target, too."""
    norms = scaling.count(methods.simsiam).norms
    assert (len(norms), all(norm.learns for norm in norms)) == (2 * 57, True)


def test_what_eight_ranks_send_by_hand(traffic):
    made = scaling.step(traffic, ALONE, ALONE, 8, 512, FAST)
    channels = sum(norm.channels for norm in traffic.norms)
    learning = sum(norm.channels for norm in traffic.norms if norm.learns)
    assert made.batch == 64
    assert made.gradients == pytest.approx(2 * 7 / 8 * 152_840_448)
    assert made.norms == pytest.approx(7 * 4 * (2 * channels + 226) + 2 * 7 / 8 * 4 * 2 * learning)
    assert made.targets == 7 * 64 * 2 * 2048 * 4
    assert made.compute == 64 / 1600
    # 340 collectives of 20 us, and 8 MB by NVLink.
    assert made.waits_norms == pytest.approx(340 * 20e-6 + made.norms / 450e9)
    # Six buckets of gradients have gone before backward, half of 40 ms, is over, but the last.
    assert made.waits_gradients == pytest.approx(20e-6 + 2 * 7 / 8 * 25 * 2**20 / 450e9)
    assert made.waits_targets == 0


def test_a_slow_network_is_not_hidden_by_backward(traffic):
    made = scaling.step(traffic, ALONE, ALONE, 32, 512, SLOW)
    latency = 20e-6 * (1 + 2)  # four nodes
    travel = 6 * latency + 2 * 31 / 32 * 152_840_448 / 12.5e9
    assert made.waits_gradients == pytest.approx(travel - 0.5 * 16 / 800)
    assert made.waits_norms == pytest.approx(340 * latency + made.norms / 12.5e9)


def test_a_group_of_one_has_no_communication(traffic):
    made = scaling.step(traffic, ALONE, ALONE, 1, 512, SLOW)
    assert (made.gradients, made.norms, made.targets, made.waits) == (0, 0, 0, 0)
    assert made.rate == pytest.approx(2000)
    assert made.hours == pytest.approx(100 * 2502 * 512 / 2000 / 3600)


@pytest.mark.parametrize("network", scaling.NETWORKS, ids=lambda network: network.name)
@pytest.mark.parametrize("total", scaling.BATCHES)
def test_efficiency_is_at_most_one_and_falls(traffic, total, network):
    efficiencies = [made.rate / (made.gpus * ALONE.best) for made in steps(traffic, total, network)]
    assert len(efficiencies) == 6
    assert all(0 < each <= 1 for each in efficiencies)
    assert efficiencies == sorted(efficiencies, reverse=True)


def test_a_slower_network_is_never_quicker(traffic):
    for total in scaling.BATCHES:
        for fast, slow in zip(steps(traffic, total, FAST), steps(traffic, total, SLOW), strict=True):
            assert slow.rate <= fast.rate
            assert (slow.rate == fast.rate) == (fast.nodes == 1)


def test_between_batches_is_interpolated_and_beyond_them_is_nothing(traffic):
    whole, forward, backward = ALONE.at(48)
    assert whole == pytest.approx((32 / 1200 + 64 / 1600) / 2)
    assert (forward, backward) == pytest.approx((0.4 * whole, 0.5 * whole))
    assert ALONE.at(16)[0] == 16 / 800
    assert ALONE.at(15) is ALONE.at(513) is None
    assert [made.gpus for made in steps(traffic, 512)] == [1, 2, 4, 8, 16, 32]
    assert [made.gpus for made in steps(traffic, 4096)] == [8, 16, 32, 64, 128, 256]
    assert scaling.step(traffic, ALONE, ALONE, 3, 512, FAST) is None


def test_several_ranks_take_the_rates_of_synchronised_norms(traffic):
    slower = [{**rate, "images_per_second": rate["images_per_second"] / 2} for rate in ALONE.measured]
    grouped = scaling.Rates({"rates": slower})
    assert scaling.step(traffic, ALONE, grouped, 1, 512, FAST).compute == 512 / 2000
    assert scaling.step(traffic, ALONE, grouped, 2, 512, FAST).compute == 256 / 950


def test_the_tables_of_the_document_are_those_that_the_script_makes():
    document = (ROOT / "docs" / "clusters.md").read_text()
    there = document.split(scaling.OPEN)[1].split(scaling.CLOSE)[0].strip()
    assert there == scaling.text()
    assert there.startswith("Not measured yet") == (not scaling.RECORD.exists())


def test_what_is_computed_is_called_so_and_written_between_the_markers(tmp_path, monkeypatch):
    record = tmp_path / "rates.json"
    circumstances = {
        "hardware": "an invented card",
        "torch": "0",
        "commit": "none",
        "recipe": scaling.ROW,
        "encoder": "resnet50",
        "size": 224,
        "precision": "bfloat16",
        "compiled": True,
    }
    record.write_text(json.dumps({**circumstances, **ALONE.record}))
    document = tmp_path / "clusters.md"
    document.write_text(f"before\n{scaling.OPEN}\nold\n{scaling.CLOSE}\nafter\n")
    for name, value in {
        "RECORD": record,
        "SYNCHRONISED": tmp_path / "none",
        "DOCUMENT": document,
        "ROOT": tmp_path,
    }.items():
        monkeypatch.setattr(scaling, name, value)
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--write", "--price", "2"])
    scaling.main()
    written = document.read_text()
    scaling.main()
    assert document.read_text() == written
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "old" not in written
    assert written.count("**Measured**: one an invented card") == 1
    assert written.count("**Computed, not measured**") == len(scaling.BATCHES)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines() if line[:3] == "| 1"]
    alone = next(row for row in rows if row[0] == "1" and row[3] == "512")
    # 100 epochs of 2,502 steps at 2,000 images a second are 17.8 hours, at two dollars.
    assert alone[4:] == ["0.0", "0.0", "0.0", "256.0", "0.0", "0.0", "2,000", "100 %", "17.8", "18", "$36"]
    assert next(row for row in rows if row[3] == "4096")[4:] == ["-"] * 11


# The measurements themselves, small


@pytest.mark.parametrize("flags", [[], ["--synchronised"]], ids=["plain", "synchronised"])
def test_rates_make_a_record_that_the_model_reads(tmp_path, monkeypatch, flags):
    out = tmp_path / "rates.json"
    small = ["--recipe", "pocket/shapes", "--batches", "4,2", "--round", "0.01", "--commit", "abc", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/rates.py", *small, *flags, "--out", str(out)])
    rates.main()
    found = scaling.read(out)
    assert [rate["batch"] for rate in found.measured] == [2, 4]
    for rate in found.measured:
        assert rate["images_per_second"] == pytest.approx(1e3 * rate["batch"] / rate["milliseconds"], rel=1e-2)
        assert sum(rate["shares"].values()) == pytest.approx(1, abs=1e-3)
        assert rate["peak_gib"] > 0
    assert (found.record["commit"], found.record["compiled"]) == ("abc", False)
    assert str(tmp_path) not in out.read_text()
    whole, forward, backward = found.at(3)
    assert whole > forward + backward > 0


def test_rates_begin_no_batch_that_would_end_too_late(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rates.json"
    small = ["--recipe", "pocket/shapes", "--batches", "2,4", "--round", "0.01", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/rates.py", *small, "--seconds", "0", "--out", str(out)])
    rates.main()
    assert [rate["batch"] for rate in scaling.read(out).measured] == [2]
    assert "stopped before batch 4" in capsys.readouterr().out


def test_a_group_of_one_is_compared_in_turn(tmp_path):
    """Two processes that really train, for a step or two."""
    out = tmp_path / "group.json"
    small = ["--recipe", "pocket/shapes", "--batch", "4", "--rounds", "3", "--steps", "1", "--warm", "1"]
    words = [sys.executable, str(ROOT / "benchmarks" / "group_of_one.py"), "shapes", *small, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    ratios = sorted(each["group of one"] / each["plain"] for each in record["seconds_a_step"])
    assert record["ratios"] == pytest.approx(ratios, abs=2e-3)
    assert record["ratio"] == record["ratios"][1]
    assert f"takes {record['ratio']:.4f} of a plain one" in done.stdout


# Job files

STUBS = {
    "scontrol": 'echo "scontrol $*" >> "$CALLS"; if [ "$1" = show ]; then echo node7; echo node8; fi',
    # To the training, as SLURM does.
    "scancel": 'echo "scancel $*" >> "$CALLS"; kill -TERM "$(cat "$CALLS.pid")"',
    "srun": 'echo "srun $*" >> "$CALLS"; echo $$ > "$CALLS.pid"; '
    'trap "sleep 0.2; echo checkpoint >> $CALLS; exit $CODE" TERM; '
    'if [ -n "$AT_ONCE" ]; then exit "$CODE"; fi; while :; do sleep 0.05; done',
}


@pytest.fixture
def job(tmp_path):
    """The job script among programs that only note how they were called; `run(code, signalled)` gives its exit code."""
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"
    slurm = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "4"}

    def run(code, signalled):
        environment = {**slurm, "CALLS": str(calls), "CODE": str(code), "AT_ONCE": "" if signalled else "yes"}
        environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        script = subprocess.Popen(
            ["bash", str(ROOT / "examples" / "slurm.sh")], env=environment, stdout=subprocess.PIPE
        )
        if signalled:
            while not (tmp_path / "calls.pid").exists():
                time.sleep(0.01)
            time.sleep(0.2)
            script.send_signal(signal.SIGUSR1)
        script.communicate(timeout=30)
        return script.returncode, calls.read_text().splitlines()

    return run


def test_the_job_script_is_valid():
    subprocess.run(["bash", "-n", str(ROOT / "examples" / "slurm.sh")], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(ROOT / "examples" / "slurm.sh")], check=True)


def test_a_job_near_its_limit_writes_a_checkpoint_and_queues_itself_again(job):
    code, calls = job(code=143, signalled=True)
    assert code == 0
    assert calls[0] == "scontrol show hostnames node[7-8]"
    assert "--nnodes=2 --nproc-per-node=4" in calls[1]
    assert "--rdzv-endpoint=node7:29500 --rdzv-id=42-0" in calls[1]
    assert calls[2:] == ["scancel --signal=TERM 42", "checkpoint", "scontrol requeue 42"]


def test_a_job_that_is_done_when_its_limit_is_near_is_not_queued_again(job):
    code, calls = job(code=0, signalled=True)
    assert code == 0
    assert calls[2:] == ["scancel --signal=TERM 42", "checkpoint"]


@pytest.mark.parametrize("code", [0, 2])
def test_a_job_that_ends_by_itself_ends_with_the_code_of_its_training(job, code):
    assert job(code=code, signalled=False)[0] == code
    assert not [call for call in job(code=code, signalled=False)[1] if "requeue" in call]


def test_the_pytorchjob_has_what_a_training_needs():
    job = yaml.safe_load((ROOT / "examples" / "kubernetes.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(job["spec"]["nprocPerNode"])
    elastic = job["spec"]["elasticPolicy"]
    assert elastic["minReplicas"] <= worker["replicas"] == elastic["maxReplicas"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert 30 < int(environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts) == set(volumes)
    assert mounts["shm"] == "/dev/shm"
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    out = container["args"][container["args"].index("--out") + 1]
    assert out.startswith(mounts["runs"] + "/")
    assert all(isinstance(word, str) for word in (*container["command"], *container["args"]))


def test_torchrun_reads_what_the_operator_sets(monkeypatch):
    from torch.distributed.run import get_args_parser

    for name, value in {"NNODES": "1:2", "NPROC_PER_NODE": "8", "MAX_RESTARTS": "10", "RDZV_ENDPOINT": "a:1"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    job = yaml.safe_load((ROOT / "examples" / "kubernetes.yaml").read_text())
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    python, _, launcher, *words = container["command"]
    assert (python, launcher) == ("python", "torch.distributed.run")
    flags = get_args_parser().parse_args([*words, *container["args"]])
    assert (flags.nnodes, flags.nproc_per_node, flags.max_restarts) == ("1:2", "8", 10)
    assert (flags.training_script, flags.training_script_args[0]) == ("fastmoco", "pretrain")
