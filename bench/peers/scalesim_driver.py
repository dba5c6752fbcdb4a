"""Runs inside SCALE-Sim's own environment: simulates the layers of a topology and prints the cycles of the
last one, without stalls and the first prefetch. Needs scalesim and numpy<2, nothing of ours.

python scalesim_driver.py CONFIG.cfg TOPOLOGY.csv LAYOUT.csv FOLDER conv|gemm
"""

import sys
from pathlib import Path

from scalesim.scale_sim import scalesim


def main(config: str, topology: str, layout: str, folder: str, kind: str) -> None:
    scalesim(
        save_disk_space=True,
        verbose=False,
        config=config,
        topology=topology,
        layout=layout,
        input_type_gemm=kind == "gemm",
    ).run_scale(top_path=folder)
    (report,) = Path(folder).rglob("COMPUTE_REPORT.csv")
    _, _, cycles, stalls, *_ = report.read_text().splitlines()[-1].split(",")
    print(float(cycles) - float(stalls))


if __name__ == "__main__":
    main(*sys.argv[1:6])
