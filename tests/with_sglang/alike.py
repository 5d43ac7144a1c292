"""What the ranks of an engine have to have alike."""

OWN_FIGURES = {
    "copied_forwards",
    "early_forwards",
    "copy_ns",
    "copy_within_ns",
    "failed_submissions",
    "metadata_bytes",
    "peak_metadata_bytes",
    "oldest_operation_ns",
}
"""Of each rank's own copies: when they were made, and what had to be remembered of them."""


def state_of_all(engine, ranks):
    """The state of the first rank, once it was seen that the others have the same."""
    first, *others = engine.states()
    assert len(others) == ranks - 1
    for other in others:
        assert shared(other) == shared(first)
    return first


def shared(state):
    """What all ranks have."""
    return {name: figure for name, figure in state.items() if name not in OWN_FIGURES}
