"""The demo: the same prompts cold, hot, restored and cut short, over rank processes. Needs torch.

What it promises is compared and not counted: tokens and logits with those of one rank without a cache, and the
bytes of every page that a match returns with those that a forward computes anew.
"""

from cpkv.demo.run import DemoSettings, run_demo
from cpkv.demo.verdict import Row, Verdict

__all__ = ["DemoSettings", "Row", "Verdict", "run_demo"]
