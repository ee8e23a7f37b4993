"""`surefoot data`: check a task, and show the files that it needs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.inputs import Root, refuse_ending, refuse_unknown_task, refuse_wrong_outputs, task_files
from surefoot.cli.terminal import busy, echo, print_tables, progress
from surefoot.errors import InputError
from surefoot.io import all_or_none, real_path

if TYPE_CHECKING:
    from surefoot.lab.tasks import Task
    from surefoot.lab.tasks.check import Finding

data = typer.Typer(
    help="Check the data of a task, or show which files it needs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LISTED = 5  # samples of a finding that are named in the terminal

Which = Annotated[str, typer.Argument(metavar="TASK", help="A .toml file, or a name of 'surefoot ls tasks'.")]


class Format(StrEnum):
    """How the findings are printed."""

    TABLE = "table"
    JSON = "json"


@data.command()
def check(
    task: Which,
    root: Root = None,
    contact_sheet: Annotated[
        Path | None,
        typer.Option(help="Write an image (.png) with familiar and unfamiliar samples of each label."),
    ] = None,
    resolved: Annotated[
        Path | None, typer.Option(help="Write the resolved split (.csv) and a .toml task that reads it.")
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read.")
    ] = False,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the findings.")
    ] = Format.TABLE,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False,
) -> None:
    """Count a task's samples, open every image, and check for leaks. Exits with 1 if there is a problem."""
    from dataclasses import replace

    from surefoot.lab.tasks.check import inspect

    refuse_ending(contact_sheet, ".png")
    refuse_ending(resolved, ".csv")
    outputs = [contact_sheet, resolved, None if resolved is None else resolved.with_suffix(".toml")]
    refuse_wrong_outputs(task_files(task), outputs)
    loaded = _load(task, root)
    _refuse_images(loaded, outputs)
    with progress("opening every image", sum(len(each) for each in loaded.splits.values())) as tick:
        findings = inspect(loaded, tick=tick)
    if skip_unreadable:
        findings = [replace(each, serious=each.serious and each.name != "unreadable") for each in findings]
    if output_format is Format.JSON:
        _print_json(loaded, findings)
    else:
        _print_tables(loaded, findings)
    _write(loaded, contact_sheet, resolved)
    failing = ("PROBLEM", "warning") if strict else ("PROBLEM",)
    if any(finding.level in failing for finding in findings):
        if not any(finding.serious for finding in findings):
            echo("failed: with --strict warnings count as problems", err=True)
        raise typer.Exit(1)


@data.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of 'surefoot ls tasks'.")],
    root: Root = None,
) -> None:
    """Show the files that a task needs, which are missing, where they are published and their terms.

    Exits with 1 if a required file is missing.
    """
    from surefoot.lab.tasks import TASKS
    from surefoot.report.tables import Table

    refuse_unknown_task(name)
    entry = TASKS.named(name)
    echo(f"{entry.title}: {entry.description}")
    if entry.layout is None:
        names = ", ".join(f"{entry.name}/{variant}" for variant in entry.variants) or entry.name
        echo(f"Built in: nothing to download. Use it as: {names}")
        return
    rows = []
    for place in entry.layout.places:
        path = None if root is None else place.find(root)
        if root is None or path is None:
            where = " or ".join(place.paths)
            states = ("optional", "required") if root is None else ("missing", "MISSING")
            state = f"{states[0]}: {place.optional}" if place.optional else states[1]
        else:
            where, state = path.relative_to(root).as_posix(), "present"
        rows.append((where, f"{place.source.title}: {place.what}", state))
    title, header = f"Below {root or 'the root folder'}", ("where", "what", "state")
    print_tables([Table.of_text(title, header, tuple(rows))])
    for source in entry.layout.sources():
        terms = (f"  terms: {source.terms}", f"  cite: {source.citation}")
        echo(f"{source.title}: {source.published}", *terms)
    if root is not None and entry.layout.missing(root):
        raise typer.Exit(1)


def _load(name: str, root: Path | None) -> "Task":
    from surefoot.lab.tasks import task_named

    with busy(f"reading {name}"):
        return task_named(name, root=root)


def _refuse_images(task: "Task", outputs: list[Path | None]) -> None:
    """Fail where an output would replace one of the task's images."""
    from surefoot.lab.tasks import ImageFiles

    for output in (real_path(output) for output in outputs if output is not None):
        for samples in task.splits.values():
            inputs = samples.inputs
            if not isinstance(inputs, ImageFiles) or not output.is_relative_to(inputs.root):
                continue
            if output.relative_to(inputs.root).as_posix() in inputs.paths:
                raise InputError(f"the output {output} is an image of the task; allowed: another file")


def _write(task: "Task", contact_sheet: Path | None, resolved: Path | None) -> None:
    written = []
    with all_or_none():
        if contact_sheet is not None:
            from surefoot.lab.tasks.contact_sheet import write_contact_sheet

            with busy("drawing the contact sheet"):
                write_contact_sheet(task, contact_sheet)
            written.append(f"contact sheet: {contact_sheet}")
        if resolved is not None:
            from surefoot.lab.tasks import write_resolved

            written.append(f"resolved split: {resolved}, read by {write_resolved(task, resolved)}")
    for line in written:
        echo(line, err=True)


def _print_tables(task: "Task", findings: "list[Finding]") -> None:
    from surefoot.lab.tasks.check import attribute_counts, label_counts
    from surefoot.report.tables import Table

    tables = [Table.of_text(f"{task.name}: samples per label", *label_counts(task))]
    tables += [Table.of_text(name, *counts) for name, counts in attribute_counts(task).items()]
    print_tables(tables)
    echo(f"split {task.identity}")
    for remark in task.remarks:
        echo(f"note: {remark}")
    for finding in findings:
        echo(f"{finding.level}: {finding.sentence}")
        for sample in finding.samples[:LISTED]:
            echo(f"    {sample}")
        if len(finding.samples) > LISTED:
            echo(f"    and {len(finding.samples) - LISTED:,} more; --format json lists all")
    if not any(finding.serious for finding in findings):
        levels = {finding.level for finding in findings}
        seen = "warnings" if "warning" in levels else "notes"
        echo("no problems" + (f", but see the {seen}" if levels else ""))


def _print_json(task: "Task", findings: "list[Finding]") -> None:
    import json
    from dataclasses import asdict

    from surefoot.lab.tasks.check import attribute_counts, label_counts

    counts = {"label": label_counts(task), **attribute_counts(task)}
    document = {
        "task": task.name,
        "identity": task.identity,
        "classes": task.class_names,
        "samples": {split.value: len(each) for split, each in task.splits.items()},
        "counts": {
            name: [dict(zip(h, row, strict=True)) for row in rows] for name, (h, rows) in counts.items()
        },
        "remarks": task.remarks,
        "findings": [{**asdict(finding), "level": finding.level} for finding in findings],
    }
    typer.echo(json.dumps(document, indent=2))
