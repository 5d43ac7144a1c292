"""SGLang warns of what a machine without a GPU does not have, when it is imported: once, and before tests look."""

import importlib
import importlib.util
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("sglang") is not None:
        importlib.import_module("sglang.srt.managers.schedule_batch")
