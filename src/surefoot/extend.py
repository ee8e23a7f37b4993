"""Adding metrics, calibrators, methods, training variants and tasks from outside the package."""

from surefoot.calibrators import CALIBRATORS, Calibrator
from surefoot.errors import InputError, shown
from surefoot.lab.experiments.methods import METHODS, Method
from surefoot.lab.tasks import TASKS, TaskEntry
from surefoot.lab.variants import VARIANTS, Variant
from surefoot.metrics import METRICS, Metric


def register(*entries: Metric | Calibrator | Method | TaskEntry | type[Variant]) -> None:
    """Add entries to their registries; they then work wherever the built-in ones do.

    Call it in a module and name that module as a plugin (`plugins = ["my_module"]` in an experiment,
    `surefoot --plugin my_module`, or the entry-point group `surefoot.plugins`), so that worker processes
    load it too.

    >>> from surefoot import Metric, register
    >>> register(Metric("top_two", "Top two", "share", "ours", function=share_of_top_two))  # doctest: +SKIP
    """
    for entry in entries:
        if isinstance(entry, type) and issubclass(entry, Variant):
            VARIANTS.add(entry)
        elif isinstance(entry, Metric):
            METRICS.add(entry)
        elif isinstance(entry, Calibrator):
            CALIBRATORS.add(entry)
        elif isinstance(entry, Method):
            METHODS.add(entry)
        elif isinstance(entry, TaskEntry):
            TASKS.add(entry)
        else:
            raise InputError(
                f"cannot register {shown(entry)}; allowed: a Metric, Calibrator, Method, TaskEntry, or a "
                "subclass of Variant"
            )
