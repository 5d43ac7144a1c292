"""Print what a submission costs the calling thread, and what was measured for the choice of a path.

PYTHONPATH=python:tests:tests/gpu python tests/gpu/submission_costs.py [path ...]
"""

import sys
import time

import numpy as np
import torch
from gpu_pools import gpu_pools, handle, spin, unexpected

from cpkv.device import BACKUP
from cpkv.device.cuda import CudaEngine
from cpkv.layout import PageLayout

LAYERS = 8
PAGES = 1024
ROUNDS = 20
CASES = ((16, 16), (16, 1), (512, 16), (512, 1))
"""Pages, and pages in a run."""


def microseconds(engine, pools, count, run):
    """Return the cost of a plan for each layer, and the median and the worst of submitting one."""
    random = np.random.default_rng(count)
    firsts = random.permutation(PAGES // run)[: count // run, None] * run
    homes = random.permutation(PAGES // run)[: count // run, None] * run
    pages, slots = (firsts + np.arange(run)).ravel(), (homes + np.arange(run)).ravel()
    submitted, planned = [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        plan = engine.plan(pools.device, pools.host, pages, slots, "to_host")
        planned.append((time.perf_counter_ns() - begin) / LAYERS)
        for layer in range(LAYERS):
            begin = time.perf_counter_ns()
            engine.submit(BACKUP, plan, layer, layer + 1, after=handle(), on_failure=unexpected)
            submitted.append(time.perf_counter_ns() - begin)
        spin(engine, BACKUP, engine.next_sequence(BACKUP) - 1)
    submitted = submitted[LAYERS:]
    return np.median(planned) / 1e3, np.median(submitted) / 1e3, max(submitted) / 1e3


def main():
    pools = gpu_pools(
        PageLayout.mla(target_layers=LAYERS, index_layers=None), pages=PAGES, slots=PAGES, segment_pages=32
    )
    print(f"{torch.cuda.get_device_name()}, KV and index rows of {LAYERS} layers, one submission a layer")
    print(f"{'path':8}{'pages':>6}{'run':>5}{'plan us/layer':>15}{'submit us p50':>15}{'max':>9}")
    for path in sys.argv[1:] or ("auto", "batch", "blocks", "kernel", "each"):
        engine = CudaEngine(copy_path=path)
        for count, run in CASES:
            plan, median, worst = microseconds(engine, pools, count, run)
            print(f"{path:8}{count:6}{run:5}{plan:15.1f}{median:15.1f}{worst:9.1f}", flush=True)
        if path == "auto":
            for what, how in engine.explain().items():
                print(f"  {what}: {how}")
        engine.close()


if __name__ == "__main__":
    main()
