"""A share, measured: the copies alone, layers that take as much longer as is wanted, and then every way in turns."""

from functools import partial
from statistics import median

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.passes import alone, typical_ns
from cpkv.bench.copy.run import Run
from cpkv.bench.overlap.calibration import calibrated_units
from cpkv.bench.overlap.formulas import most_hidden_percent
from cpkv.bench.overlap.rounds import layer_ns, measured_rounds
from cpkv.bench.overlap.rows import HIDDEN, REACHED, SLOWDOWN, share_rows
from cpkv.bench.overlap.settings import DRAFT_LAYERS
from cpkv.bench.overlap.start import case_of


def measure_share(run: Run, share: int) -> list[CopyFigure]:
    """Run forwards whose layers take so long that the copy of one takes `share` percent of it."""
    title = f"{share} % of compute"
    return run.figures(partial(_measure, run, share, title), share_rows(title, (), _targets(run), {}))


def _measure(run: Run, share: int, title: str) -> list[CopyFigure]:
    case, platform = case_of(run.pages), run.platform
    with run.site(pages=case.device_pages, slots=case.slots, draft_layers=DRAFT_LAYERS) as site:
        copier = BackupCopier(site, case.places())
        copy_ns = typical_ns(alone(platform, copier, run.repeats)) / site.layers
        units = calibrated_units(partial(layer_ns, site), 100 * copy_ns / share)
        rounds = measured_rounds(site, copier, units, run.repeats, title)
    run.timeline.forwards += [one.hooked for one in rounds]
    layer_ms = median(one.plain_ns for one in rounds) / site.layers / 1e6
    copy_ms = median(one.alone_ns for one in rounds) / site.layers / 1e6
    notes = {
        REACHED: f"alone a layer takes {layer_ms:.3f} ms, {units} times {platform.layer_unit}; its copy takes "
        f"{copy_ms:.3f} ms, {case.pages} pages in runs of {case.run_pages}, {copier.bytes // site.layers:,} bytes",
        HIDDEN: f"of equal copies {most_hidden_percent(site.layers):.1f} at most: the last of {site.layers} layers is "
        "copied when the forward has ended",
    }
    return share_rows(title, rounds, _targets(run), notes)


def _targets(run: Run) -> dict[str, float | None]:
    pages = case_of(run.pages).pages
    return {HIDDEN: run.targets.hidden(pages=pages), SLOWDOWN: run.targets.slowdown(pages=pages, load="matmul")}
