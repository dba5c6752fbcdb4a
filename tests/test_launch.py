"""The files that start a cluster: Ray's own schema, KubeRay's keys, shells that parse, studies that exist."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ROOT / "cluster" / "launch"


@pytest.mark.parametrize("name", ["aws", "gcp"])
def test_a_cluster_file_is_what_ray_up_reads(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((LAUNCH / f"{name}.yaml").read_text())
    full = prepare_config(config)
    validate_config(full)
    assert full["provider"]["type"] == name
    assert config["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}


def test_a_ray_job_has_the_groups_and_containers_of_kuberay() -> None:
    job = yaml.safe_load((LAUNCH / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_parses_and_says_what_it_needs(path: Path) -> None:
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_slurm_starts_ray_as_ray_reads_it() -> None:
    from ray.scripts.symmetric_run import curate_and_validate_ray_start_args

    text = (LAUNCH / "slurm.sh").read_text().replace("\\\n", "")
    (words,) = re.findall(r"ray symmetric-run (.*?) -- ", text)
    assert curate_and_validate_ray_start_args(words.split()) == ['--num-cpus="$SLURM_CPUS_ON_NODE"']


@pytest.mark.parametrize("path", sorted(LAUNCH.iterdir()), ids=lambda path: path.name)
def test_files_name_this_ray_and_studies_that_exist(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"ray:(\d+\.\d+\.\d+)|rayVersion: (\S+)", text)) <= {
        (version("ray"), ""),
        ("", version("ray")),
    }
    for study in re.findall(r"studies/\w+\.yaml", text):
        assert (ROOT / study).is_file()
