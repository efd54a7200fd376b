"""Asks before something is destroyed."""

from __future__ import annotations

import sys

import click

from duramen.cli.shared.output import note


def confirm(question: str, yes: bool, *, otherwise: str = "nothing was done.") -> None:
    """Ask before something that cannot be undone; where nobody can answer, --yes is needed. otherwise: said at a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone; add --yes to do it without being asked.")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        note("")  # Ctrl-C and Ctrl-D leave the question's line open
        raise
    if not agreed:
        raise click.ClickException(otherwise)
