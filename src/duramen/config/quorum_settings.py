"""Settings of the metadata quorum: who is in it, how its time-outs are, and where its log is."""

from __future__ import annotations

from duramen.config.setting import Setting

QUORUM_SETTINGS = (
    Setting(
        "controller.quorum.bootstrap.servers",
        "list",
        "",
        "Controllers as host:port, by which a node finds the others: any that can be reached will do. A node that "
        "names some does not start on a directory that `duramen cluster init` has not formatted.",
    ),
    Setting(
        "controller.quorum.voters",
        "list",
        "",
        "Voters of the metadata quorum as id@host:port. Only this node itself may be named: those of a cluster are in "
        "its log, where `duramen cluster init` puts the first ones.",
    ),
    Setting(
        "controller.quorum.election.timeout.ms",
        "int",
        "1000",
        "How long a candidate waits for votes before the next try; each time something between this and twice as long.",
        unit="ms",
        low=0,
    ),
    Setting(
        "controller.quorum.fetch.timeout.ms",
        "int",
        "2000",
        "How long a voter hears nothing from its leader before it asks for votes, and 1.5 times of it how long a "
        "leader hears nothing from a majority before it resigns.",
        unit="ms",
        low=0,
    ),
    Setting(
        "controller.quorum.election.backoff.max.ms",
        "int",
        "1000",
        "The longest wait behind an election that nobody won.",
        unit="ms",
        low=0,
    ),
    Setting(
        "controller.quorum.request.timeout.ms",
        "int",
        "2000",
        "How long a request to another node of the quorum waits for its answer.",
        unit="ms",
        low=0,
    ),
    Setting(
        "controller.quorum.retry.backoff.ms",
        "int",
        "20",
        "The wait before a request to another node of the quorum is sent again.",
        unit="ms",
        low=0,
    ),
    Setting(
        "controller.quorum.fetch.max.bytes",
        "int",
        "1048576",
        "Most bytes of the metadata log in the answer to one fetch; its first batch is always sent.",
        unit="bytes",
        low=1,
    ),
    Setting(
        "controller.quorum.fetch.snapshot.max.bytes",
        "int",
        "1048576",
        "Most bytes of a metadata snapshot in the answer to one fetch.",
        unit="bytes",
        low=1,
    ),
    Setting(
        "controller.quorum.auto.join.enable",
        "boolean",
        "false",
        "Whether a controller makes itself a voter. Voters do not change in this release, so `true` is refused.",
    ),
    Setting(
        "metadata.log.dir",
        "string",
        None,
        "Directory of the metadata log, with a journal of its own where it is none of log.dirs: then metadata never "
        "waits for data. No other topic is stored there. The first of log.dirs when unset.",
    ),
)
