"""What is told to Prometheus: names, what they mean, and which figures of the core and the drivers they have.

`exporter` publishes them. `docs/sglang.md` has a table of everything here.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Metric(NamedTuple):
    """What is told under one name.

    Attributes:
        documentation: What it means.
        figures: By the name of a figure, the labels that tell it from the others of the metric.
    """

    documentation: str
    figures: Mapping[str, Mapping[str, str]]


def _one(figure: str, documentation: str) -> Metric:
    return Metric(documentation, {figure: {}})


_TO_HOST: Final = "to_host"

GAUGES: Final = {
    "cpkv_device_capacity_pages": _one("device_capacity_pages", "Device pages, the one that is padding included."),
    "cpkv_device_cached_pages": _one("device_cached_pages", "Device pages that hold pages of the cache."),
    "cpkv_device_evictable_pages": _one("device_evictable_pages", "Cached device pages that nobody holds."),
    "cpkv_cached_pages": _one("pages", "Distinct pages in the cache, in either tier."),
    "cpkv_tree_nodes": _one("nodes", "Runs of pages in the tree."),
    "cpkv_namespaces": _one("namespaces", "Namespaces: adapters and cache salts, and the default one."),
    "cpkv_metadata_bytes": _one("metadata_bytes", "Memory of tokens, ids, tree and pools."),
}
HOST_GAUGES: Final = {
    "cpkv_device_fenced_pages": _one("device_fenced_pages", "Device pages given up that a copy still reads."),
    "cpkv_device_restoring_pages": _one("restoring_pages", "Device pages that open restores fill."),
    "cpkv_host_capacity_slots": _one("host_capacity_slots", "Host slots."),
    "cpkv_host_cached_slots": _one("host_cached_slots", "Host slots that hold pages of the cache."),
    "cpkv_host_mirror_slots": _one("host_mirror_slots", "Cached host slots whose pages are on the device, too."),
    "cpkv_host_evictable_slots": _one("host_evictable_slots", "Host slots that could be freed now."),
    "cpkv_host_reserved_slots": _one("host_reserved_slots", "Host slots of backups that may still be committed."),
    "cpkv_host_draining_slots": _one("host_draining_slots", "Host slots of rolled back backups, until copies end."),
    "cpkv_host_quarantined_slots": _one("host_quarantined_slots", "Host slots with copies not known to end."),
    "cpkv_open_operations": _one("open_operations", "Backups and restores that are not over."),
    "cpkv_oldest_operation_seconds": _one("oldest_operation_seconds", "Age of the oldest of them."),
}
COUNTERS: Final = {
    "cpkv_leases_total": _one("leases", "Leases: a request takes one each time that it is scheduled."),
    "cpkv_hit_tokens_total": Metric(
        "Tokens that leases found, by the tier that they were in.",
        {"device_hit_tokens": {"tier": "device"}, "host_hit_tokens": {"tier": "host"}},
    ),
    "cpkv_inserted_pages_total": _one("inserted_pages", "Pages added to the cache."),
    "cpkv_duplicate_pages_total": _one("duplicate_pages", "Pages computed or restored that were there already."),
    "cpkv_evicted_pages_total": Metric(
        "Pages that left a tier.",
        {"device_evicted_pages": {"tier": "device"}, "host_evicted_pages": {"tier": "host"}},
    ),
    "cpkv_lost_pages_total": _one("lost_pages", "Pages that left the cache with their device copy: no host copy."),
    "cpkv_flushes_total": _one("flushes", "Flushes."),
    "cpkv_dropped_events_total": _one("dropped_events", "KV events dropped because nobody took them."),
}
HOST_COUNTERS: Final = {
    "cpkv_reserved_pages_total": Metric(
        "Pages that host slots were reserved for: before their forward, or late.",
        {"reserved_pages": {"when": "forward"}, "late_reserved_pages": {"when": "late"}},
    ),
    "cpkv_host_skipped_pages_total": _one("host_skipped_pages", "Pages inserted without a host copy: no slots."),
    "cpkv_insert_missed_pages_total": _one("insert_missed_pages", "Pages with slots reserved that never came."),
    "cpkv_committed_operations_total": _one("committed_operations", "Backups that became visible."),
    "cpkv_committed_pages_total": _one("committed_pages", "Pages of backups that became visible."),
    "cpkv_rolled_back_operations_total": _one("rolled_back_operations", "Backups that were rolled back."),
    "cpkv_rolled_back_pages_total": _one("rolled_back_pages", "Pages of backups that were rolled back."),
    "cpkv_quarantined_operations_total": _one("quarantined_operations", "Backups with copies not known to end."),
    "cpkv_mirror_dropped_pages_total": _one("mirror_dropped_pages", "Host copies given up of pages on the device."),
    "cpkv_restores_total": _one("restores", "Restores submitted."),
    "cpkv_restored_pages_total": _one("restored_pages", "Pages brought back to the device."),
    "cpkv_recomputed_pages_total": _one("recomputed_pages", "Pages computed again that were on the host."),
    "cpkv_failed_restores_total": _one("failed_restores", "Restores that have failed."),
    "cpkv_unrestored_pages_total": _one("unrestored_pages", "Device pages given up because a restore has failed."),
    "cpkv_late_operations_total": _one("late_operations", "Late backups submitted."),
    "cpkv_failed_submissions_total": _one("failed_submissions", "Submissions that were refused, or have failed."),
    "cpkv_copied_bytes_total": Metric(
        "Bytes submitted to the copy engine: with forwards, late, and for restores.",
        {
            "backup_bytes": {"direction": _TO_HOST, "when": "forward"},
            "late_bytes": {"direction": _TO_HOST, "when": "late"},
            "restore_bytes": {"direction": "to_device", "when": "restore"},
        },
    ),
    "cpkv_hooked_forwards_total": _one("hooked_forwards", "Forwards copied layer by layer."),
    "cpkv_hooked_layers_total": _one("hooked_layers", "Layers copied by their hooks."),
    "cpkv_repeated_layers_total": _one("repeated_layers", "Layers copied again, since their hook came again."),
}

ALL_LAYER_FORWARDS: Final = "cpkv_all_layer_forwards_total"
ALL_LAYER_FORWARDS_MEANING: Final = "Forwards with layers that no hook had copied at their end, by reason."
"""Beside the others: its labels are the reasons as they come up."""
