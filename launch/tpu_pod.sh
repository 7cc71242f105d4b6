#!/usr/bin/env bash
# Runs the trainer on every host of a Cloud TPU slice, from a machine that has gcloud.
#
#   TPU=my-slice ZONE=us-east5-a bash launch/tpu_pod.sh --config=configs/base.py --workdir=/mnt/shared/runs/a
#
# Copies this checkout to the hosts, installs it there with the `tpu` extra, and starts it on all of them at once; the
# processes find one another through the TPU's metadata server. The workdir must be on a file system that all hosts
# share. SETUP=no skips copying and installing. Given again after a preemption, the command resumes.
# Ctrl-C ends the connections, not the run; STOP=yes tells the run to write a checkpoint and stop.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ -n ${TPU:-} ]] || fail "TPU is not set; name the slice, as gcloud compute tpus tpu-vm list shows it"
[[ -n ${ZONE:-} ]] || fail "ZONE is not set; name the zone of $TPU"
command -v gcloud >/dev/null || fail "gcloud is not on the PATH; install the Google Cloud CLI"

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="$1"
}

if [[ ${STOP:-no} == yes ]]; then
  # shellcheck disable=SC2016 # the hosts' own USER
  on_all_hosts 'pkill -TERM -u "$USER" -f "[s]pade_jax.train"'
  exit
fi
if [[ ${SETUP:-yes} == yes ]]; then
  archive=$(mktemp --suffix=.tar.gz)
  trap 'rm -f "$archive"' EXIT
  tar -czf "$archive" -C "$ROOT" --exclude=.git --exclude='.venv*' --exclude=runs --exclude=__pycache__ .
  gcloud compute tpus tpu-vm scp "$archive" "$TPU:spade_jax.tar.gz" --zone="$ZONE" --worker=all
  on_all_hosts 'set -e
    mkdir -p spade_jax
    tar -xzf spade_jax.tar.gz -C spade_jax
    [ -x spade_jax/.venv/bin/python ] || python3 -m venv spade_jax/.venv
    spade_jax/.venv/bin/python -m pip install --quiet --editable "spade_jax[tpu]"'
fi
on_all_hosts "cd spade_jax && exec .venv/bin/python -m spade_jax.train$(printf ' %q' "$@")"
