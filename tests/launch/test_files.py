"""The launch files, as far as one machine goes: with stand-ins for srun, gcloud and the trainer."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from spade_jax.runtime import distributed

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = [*sorted((ROOT / "launch").glob("*.sh")), ROOT / "launch" / "slurm.sbatch", ROOT / ".ci" / "run"]

# Stands where the trainer is called; everything else goes to the real Python.
_PYTHON = """#!/bin/bash
if [[ $1 == -m && $2 == spade_jax.train ]]; then shift 2; exec {real} {trainer} "$@"; fi
exec {real} "$@"
"""
# Says with what it was called; goes on for SECS, or until it is told to stop; ends with CODE.
_TRAINER = """
import os, pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *unused: asked.append(1))
print("called", *sys.argv[1:], {k: v for k, v in os.environ.items() if k == "SLURM_PROCID"}, flush=True)
until = time.monotonic() + float(os.environ.get("SECS", "0"))
while time.monotonic() < until and not asked:
    time.sleep(0.01)
workdir = [a.removeprefix("--workdir=") for a in sys.argv if a.startswith("--workdir=")]
if asked:
    print("checkpoint written", flush=True)
elif workdir:
    pathlib.Path(workdir[0]).mkdir(exist_ok=True)
    pathlib.Path(workdir[0], "report.html").touch()
sys.exit(int(os.environ.get("CODE", "0")))
"""
# A task per line of srun's: as many as TASKS says, with the variables that ours looks at.
_SRUN = """#!/bin/bash
echo "srun $1 $2"
shift 2
echo $$ >"$STUBS/srun.pid"
for ((i = 0; i < TASKS; i++)); do
  SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
  pids+=($!)
done
trap 'kill -TERM "${pids[@]}"' TERM
code=0
for pid in "${pids[@]}"; do
  while kill -0 "$pid" 2>/dev/null; do wait "$pid" || code=$?; done
done
exit 0
"""


def executable(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def stubs(tmp_path):
    """A folder of commands in front of the PATH, and the environment that uses it."""
    trainer = tmp_path / "trainer.py"
    trainer.write_text(_TRAINER)
    folder = tmp_path / "bin"
    folder.mkdir()
    python = executable(folder / "my_python", _PYTHON.format(real=sys.executable, trainer=trainer))
    environ = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": str(python), "STUBS": str(folder)}
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    return folder, environ


def launch(script: str, *arguments: str, env: dict[str, str], cwd: pathlib.Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(ROOT / "launch" / script), *arguments],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Who runs the tests in the background has Ctrl-C ignored, which a shell hands down and cannot take back.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shell_is_sound(path):
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    if path.name != "common.sh":
        assert os.access(path, os.X_OK) and "set -euo pipefail" in path.read_text()
    beside_python = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    if shellcheck := shutil.which("shellcheck", path=beside_python):
        subprocess.run([shellcheck, "-x", "-P", str(ROOT / "launch"), str(path)], check=True)


# ---------------------------------------------------------------------------
# local.sh
# ---------------------------------------------------------------------------


def test_local_is_one_process_by_default(stubs, tmp_path):
    process = launch("local.sh", "--workdir=w", "--config=a b", env=stubs[1], cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "called --workdir=w --config=a b {}\n", "")


def test_local_gives_several_processes_their_gpus(stubs, tmp_path):
    env = stubs[1] | {"PROCESSES": "2", "CUDA_VISIBLE_DEVICES": "4,5,6,7", "LOGS": f"{tmp_path}/logs"}
    process = launch("local.sh", "--workdir=w", env=env, cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    lines = output, (tmp_path / "logs" / "process-1.txt").read_text()
    for i, (line, ids) in enumerate(zip(lines, ("0,1", "2,3"), strict=True)):
        assert re.fullmatch(
            rf"called --workdir=w --distributed=on --coordinator=127\.0\.0\.1:\d+ --num_processes=2 --process_id={i} "
            rf"--local_device_ids={ids} {{}}\n",
            line,
        )
    odd = launch("local.sh", env=env | {"PROCESSES": "3"}, cwd=tmp_path).communicate(timeout=60)[1]
    assert odd == "error: PROCESSES=3 does not divide the 4 GPUs; use a divisor\n"


def test_local_ends_all_when_one_fails(stubs, tmp_path):
    trainer = tmp_path / "trainer.py"
    fails = "import pathlib, sys\nif '--process_id=1' in sys.argv:\n"
    fails += "    while 'called' not in pathlib.Path('process-2.txt').read_text(): pass\n    sys.exit(7)\n"
    trainer.write_text(fails + _TRAINER)
    env = stubs[1] | {"PROCESSES": "3", "CUDA_VISIBLE_DEVICES": "", "SECS": "300"}
    process = launch("local.sh", env=env, cwd=tmp_path)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1 and "error: a process ended with exit code 7" in errors
    assert "checkpoint written" in (tmp_path / "process-2.txt").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_local_passes_the_request_to_stop_on(stubs, tmp_path, number):
    env = stubs[1] | {"PROCESSES": "2", "CUDA_VISIBLE_DEVICES": "", "SECS": "300"}
    process = launch("local.sh", env=env, cwd=tmp_path)
    log, until = tmp_path / "process-1.txt", time.monotonic() + 120
    while not (log.exists() and "called" in log.read_text()) or "called" not in process.stdout.readline():
        assert time.monotonic() < until
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "checkpoint written" in output and "checkpoint written" in log.read_text()


@pytest.mark.slow
def test_local_processes_meet(stubs, tmp_path):
    """Two processes with two devices each, which add up a number of every one."""
    (tmp_path / "trainer.py").write_text(
        "import sys\n"
        "from spade_jax.runtime import app, distributed\n"
        "def main(argv):\n"
        "    distributed.join(distributed.read_plan())\n"
        "    import jax\n"
        "    from jax.experimental import multihost_utils\n"
        "    x = jax.numpy.array([float(jax.process_index() + 1)])\n"
        "    sys.stdout.write(f'sum {multihost_utils.process_allgather(x).sum()}\\n')\n"  # whole: Gloo prints, too
        "distributed.define_flags()\n"
        "app.run(main)\n"
    )
    env = stubs[1] | {"PROCESSES": "2", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    process = launch("local.sh", env=env, cwd=tmp_path)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    for i, text in enumerate((output, (tmp_path / "process-1.txt").read_text())):
        assert f"process {i} of 2 (flags): 2 of 4 cpu devices\n" in text and "sum 3.0\n" in text


# ---------------------------------------------------------------------------
# slurm.sbatch
# ---------------------------------------------------------------------------


@pytest.fixture
def slurm(stubs, tmp_path):
    folder, environ = stubs
    executable(folder / "srun", _SRUN)
    executable(folder / "scancel", '#!/bin/bash\necho "scancel $*"\nkill -TERM "$(cat "$STUBS/srun.pid")"\n')
    executable(folder / "scontrol", '#!/bin/bash\necho "scontrol $*"\n')
    job = {"SLURM_JOB_ID": "42", "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_CPUS_ON_NODE": "96"}
    return environ | job | {"SLURM_NTASKS_PER_NODE": "2", "TASKS": "2"}


def test_slurm_starts_the_tasks(slurm, tmp_path):
    process = launch("slurm.sbatch", f"--workdir={tmp_path}/w", env=slurm, cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.startswith("srun --cpus-per-task=48 --kill-on-bad-exit=1\n") and "scontrol" not in output
    assert output.count("called") == 2 and "'SLURM_PROCID': '1'" in output


def test_slurm_out_of_time_is_checkpointed_and_queued_again(slurm, tmp_path):
    process = launch("slurm.sbatch", env=slurm | {"SECS": "300"}, cwd=tmp_path)
    seen = ""
    while seen.count("called") < 2:
        seen += process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "scancel --signal=TERM 42" in output and output.count("checkpoint written") == 2
    assert output.endswith("scontrol requeue 42\n")  # and only once the checkpoint is there


def test_slurm_outside_a_checkout(slurm, tmp_path):
    process = launch("slurm.sbatch", env=slurm | {"SLURM_SUBMIT_DIR": str(tmp_path)}, cwd=tmp_path)
    assert f"error: {tmp_path} is not a checkout" in process.communicate(timeout=60)[1]


def test_slurm_directives_come_before_the_first_command():
    lines = (ROOT / "launch" / "slurm.sbatch").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert directives and max(directives) < first


# ---------------------------------------------------------------------------
# pod.sh and gke_jobset.yaml
# ---------------------------------------------------------------------------


def test_pod_of_a_run_that_ends(stubs, tmp_path):
    process = launch("pod.sh", "--config=c", env=stubs[1] | {"WORKDIR": f"{tmp_path}/w"}, cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output == f"called --workdir={tmp_path}/w --config=c {{}}\n"


@pytest.mark.parametrize(("pod", "code"), [("0", 75), ("1", 0)])
def test_evicted_pods_checkpoint_and_the_first_asks_for_another_start(stubs, tmp_path, pod, code):
    env = stubs[1] | {"WORKDIR": f"{tmp_path}/w", "SECS": "300", "JOB_INDEX": pod, "JOB_COMPLETION_INDEX": "0"}
    process = launch("pod.sh", env=env, cwd=tmp_path)
    assert "called" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert "checkpoint written" in output and process.returncode == code


def test_pod_passes_an_exit_code_on(stubs, tmp_path):
    process = launch("pod.sh", env=stubs[1] | {"WORKDIR": str(tmp_path), "CODE": "2"}, cwd=tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == 2


def test_jobset_hangs_together():
    (jobset,) = yaml.safe_load_all((ROOT / "launch" / "gke_jobset.yaml").read_text())
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert all(isinstance(entry.get("value", ""), str) for entry in container["env"])
    env = {
        entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"]
    }
    assert int(env["JOBSET_JOBS"]) == replicated["replicas"]
    assert int(env["JOBSET_PODS_PER_JOB"]) == job["parallelism"] == job["completions"]
    assert jobset["spec"]["network"]["enableDNSHostnames"] is True
    # A pod that fails must not be replaced by itself, in a world that the others have already left.
    assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert (ROOT / container["command"][1]).exists()
    assert {port["containerPort"] for port in container["ports"]} == {distributed._JOBSET_PORT}

    # With what Kubernetes and the controller fill in, the last pod finds its place.
    filled = {
        "metadata.annotations['jobset.sigs.k8s.io/jobset-name']": jobset["metadata"]["name"],
        "metadata.annotations['jobset.sigs.k8s.io/replicatedjob-name']": replicated["name"],
        "metadata.annotations['jobset.sigs.k8s.io/job-index']": "1",
    }
    environ = {name: filled.get(value, value) for name, value in env.items()} | {"JOB_COMPLETION_INDEX": "0"}
    plan = distributed.make_plan(distributed.Given(), environ)
    assert plan == distributed.Plan("JobSet", "spade-host-0-0.spade:8476", 2, 1)


# ---------------------------------------------------------------------------
# tpu_pod.sh and Dockerfile.cuda
# ---------------------------------------------------------------------------


def test_tpu_pod(stubs, tmp_path):
    folder, environ = stubs
    executable(folder / "gcloud", '#!/bin/bash\necho "gcloud $*"\n')
    missing = launch("tpu_pod.sh", env=environ, cwd=tmp_path)
    assert missing.communicate(timeout=60)[1].startswith("error: TPU is not set; name the slice")
    env = environ | {"TPU": "slice", "ZONE": "z", "TMPDIR": str(tmp_path)}
    started = launch("tpu_pod.sh", "--config=c.py:a,b", "--config.x=('p', 'q')", env=env, cwd=tmp_path)
    output, errors = started.communicate(timeout=120)
    assert started.returncode == 0, errors
    copied, *_, last = output.splitlines()
    assert re.fullmatch(
        r"gcloud compute tpus tpu-vm scp \S+\.tar\.gz slice:spade_jax\.tar\.gz --zone=z --worker=all", copied
    )
    assert "--worker=all --command=cd spade_jax && exec .venv/bin/python -m spade_jax.train" in last
    (flags,) = re.findall(r"spade_jax\.train (.*)", last)
    shown = subprocess.run(["bash", "-c", f"printf '%s|' {flags}"], capture_output=True, text=True, check=True)
    assert shown.stdout == "--config=c.py:a,b|--config.x=('p', 'q')|"
    assert not list(tmp_path.glob("*.tar.gz"))
    quick = launch("tpu_pod.sh", env=env | {"SETUP": "no"}, cwd=tmp_path).communicate(timeout=60)[0]
    assert len(quick.splitlines()) == 1
    stop = launch("tpu_pod.sh", env=env | {"STOP": "yes"}, cwd=tmp_path).communicate(timeout=60)[0]
    assert "pkill -TERM" in stop and len(stop.splitlines()) == 1


def test_dockerfile_copies_what_exists():
    text = (ROOT / "launch" / "Dockerfile.cuda").read_text()
    for line in text.splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
    extras = re.search(r"\.\[([\w,]+)\]", text)[1].split(",")
    setup = (ROOT / "setup.py").read_text()
    assert all(f'"{extra}": ' in setup for extra in extras)
