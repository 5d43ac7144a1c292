"""Whether this machine has what cpkv needs, and what will be slower than it could be."""

from cpkv.doctor.check import Check, has_failed
from cpkv.doctor.copy_path import copy_path_checks
from cpkv.doctor.examination import examine

__all__ = ["Check", "copy_path_checks", "examine", "has_failed"]
