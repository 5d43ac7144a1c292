"""Lets SGLang serve MLA, DSA and EAGLE, and keep its own host cache, on a CPU.

SGLang finds `register` through the entry point group `sglang.srt.plugins`, as it finds cpkv, in every process that
has the folder above on its path. The attention backend is `torch_native`. One file for each thing that does not work
without it:

- `capability`: resolving the options of a DSA model asks a GPU what it can do;
- `latents`: which form of MLA the backend computes;
- `index_keys`: DSA's indexer, which is written for GPUs only;
- `drafts`: the backend's part in EAGLE, which it does not have;
- `nextn`: the draft of a DSA model, which has experts and waits for a GPU;
- `host_copies`: what SGLang's own host cache copies with, which is there on a GPU only;
- `allocations`: what the allocator of pages computes by kernels before 0.5.22;
- `adapters`: LoRA, which pins memory for a GPU;
- `memory`: giving up device memory, for which there is a library on a GPU only.

`controls` is for the tests.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from cpu_patches.capability import name_a_gpu


def register():
    """Patch what every process needs now, and the rest where there will be a scheduler."""
    name_a_gpu()
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", patch_scheduler, HookType.BEFORE)


def patch_scheduler(scheduler, options, *_, **__):
    """Patch before anything is made."""
    # They import what other processes do not need and would take seconds for.
    from cpu_patches import adapters, allocations, controls, drafts, host_copies, index_keys, latents, nextn  # noqa: PLC0415

    allocations.allocate_on_cpu()
    if options.lora_paths:
        adapters.pin_nothing()
    latents.absorb()
    index_keys.store_on_cpu()
    drafts.follow_chains()
    nextn.draft_densely()
    host_copies.copy_by_indexing()
    controls.watch(scheduler)
