"""Steps that read the changes of a table, on a real Spark over topics that are folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from files import FileTopics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.model.folders import Current, StepFolder
from duramen.pipelines.run import changes
from duramen.pipelines.run.dry_runner import DryRunner
from duramen.pipelines.run.reprocess import Reprocessing
from duramen.pipelines.run.runner import QueryFailedError, Runner

pytestmark = pytest.mark.timeout(600)

CUSTOMERS = pipelines.Topic("customers", key="customer", schema="town string")


def declared(folder: Path) -> tuple[pipelines.Pipeline, pipelines.Pipeline]:
    crm, shop = (pipelines.Pipeline(name, folder=folder / name) for name in ("crm", "shop"))

    @crm.table(CUSTOMERS, keys=["customer"])
    def customers(customers: DataFrame) -> DataFrame:
        return customers

    @shop.table(crm.changes("customers"), keys=["customer"], store="parquet")
    def copied(changed: DataFrame) -> DataFrame:
        return changed.drop("_change")

    @shop.history(crm.changes("customers"))
    def log(changed: DataFrame) -> DataFrame:
        return changed.withColumnRenamed("_change", "change")

    @shop.table(crm.changes("customers"), keys=["change"], aggregate=True, store="parquet")
    def counts(changed: DataFrame) -> DataFrame:
        found = changed.withColumn("_cause", F.col("_cause").withField("deleted", F.lit(False)))
        return found.groupBy(F.col("_change").alias("change")).agg(F.count("*").alias("rows"), pipelines.latest_cause())

    return crm, shop


def run(runner: Runner, *names: str) -> None:
    runner.run(names, lambda _: None, lambda _: None, available_now=True)


def test_changes_of_a_table_are_worked_in_once(spark: SparkSession, tmp_path: Path) -> None:
    """Cut off before and after the commit of the sink, run again while the table moves on: equal to a plain count."""
    topics, (crm, shop) = FileTopics(tmp_path / "topics"), declared(tmp_path)
    assert DryRunner(shop, spark, topics).plan("log").rows.columns[:3] == ["customer", "town", "change"]
    with pytest.raises(ConfigError, match=r"customers of pipeline crm .*holds nothing yet .* run that step first"):
        run(Runner(shop, spark, topics), "copied")
    batches = [
        [("ann", {"town": "Bonn"}), ("bob", {"town": "Kiel"})],
        [("ann", {"town": "Ulm"}), ("bob", None)],
        [("cyd", {"town": "Ulm"}), ("bob", {"town": "Jena"})],
        [("ann", None)],
    ]

    def upstream(batch: int) -> None:
        topics.append("customers", batches[batch])
        run(Runner(crm, spark, topics), "customers")

    upstream(0)
    upstream(1)
    for number, point in enumerate(("batch computed", "batch applied")):

        def fail(name: str, point: str = point) -> None:
            if name == point:
                raise RuntimeError("cut off here")

        for step in ("copied", "log", "counts"):
            with pytest.raises(QueryFailedError, match="cut off here"):
                run(Runner(shop, spark, topics, fail), step)
        upstream(2 + number)
    run(Runner(shop, spark, topics), *shop.steps)
    rows = pipelines.open_table(shop, "copied").rows()
    assert {row["customer"]: row["town"] for row in rows.to_pylist()} == {"bob": "Jena", "cyd": "Ulm"}
    assert rows["_topic"].to_pylist() == ["crm.customers@v1"] * 2
    found = pipelines.open_table(shop, "log").rows().sort_by([("_offset", "ascending"), ("customer", "ascending")])
    assert [(row["_offset"], row["customer"], row["change"]) for row in found.to_pylist()] == [
        (0, "ann", "upsert"),
        (0, "bob", "upsert"),
        (1, "ann", "upsert"),
        (1, "bob", "delete"),
        (2, "bob", "upsert"),
        (2, "cyd", "upsert"),
        (3, "ann", "delete"),
    ]
    counted = pipelines.open_table(shop, "counts").rows().to_pylist()
    assert {row["change"]: row["rows"] for row in counted} == {"upsert": 5, "delete": 2}

    # The table's step is swapped: its versions are others from then on.
    Reprocessing(crm, "customers").build(Runner(crm, spark, topics), "v2", lambda _: None, lambda _: None)
    StepFolder(crm.folder, "customers").point(Current("v2", "v1"))
    with pytest.raises(ConfigError, match=r"copied reads the changes of crm.customers@v1, and crm.customers@v2 has"):
        run(Runner(shop, spark, topics), "copied")
    again = Reprocessing(shop, "copied")
    report = again.build(Runner(shop, spark, topics), "v2", lambda _: None, lambda _: None)
    assert report.behind == 0
    again.swap("v2")
    run(Runner(shop, spark, topics), "copied")
    rows = pipelines.open_table(shop, "copied").rows()
    assert {row["customer"]: row["town"] for row in rows.to_pylist()} == {"bob": "Jena", "cyd": "Ulm"}
    assert changes.end(crm.changes("customers")).to_json().keys() == {"crm.customers@v2"}
