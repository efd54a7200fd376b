"""The pipeline of the demo: where each aircraft is, how late each airline was on each day, and in which weather
flights were cancelled.

The demo copies this file, plants a bug in the copy, runs it, and mends it later by replay.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from duramen import pipelines

flights = pipelines.Topic(
    "flights",
    key="tailnum",
    schema="row int, month int, day int, carrier string, flight int, origin string, dest string, arr_delay int",
    options={"maxOffsetsPerTrigger": "32000"},
)
weather = pipelines.Topic(
    "weather",
    key="origin",
    schema="at timestamp, wind double, visibility double",
    options={"maxOffsetsPerTrigger": "7000"},
)
cancellations = pipelines.Topic(
    "cancellations",
    schema="flight_row int, origin string, at timestamp, carrier string, flight int",
    options={"maxOffsetsPerTrigger": "2200"},
)
pipeline = pipelines.Pipeline("tour")


@pipeline.table(flights, keys=["tailnum"])
def aircraft(flights: DataFrame) -> DataFrame:
    """The latest flight of each aircraft."""
    return flights.where("tailnum IS NOT NULL").select(
        "tailnum", "row", "month", "day", "carrier", "flight", "origin", "dest", "_cause"
    )


@pipeline.table(flights, keys=["carrier", "month", "day"], aggregate=True)
def delays(flights: DataFrame) -> DataFrame:
    """Flights and minutes late on arrival, of each airline on each day."""
    landed = flights.where("arr_delay IS NOT NULL")
    return landed.groupBy("carrier", "month", "day").agg(
        F.count("*").alias("landed"), F.sum("arr_delay").alias("minutes"), pipelines.latest_cause()
    )


@pipeline.table(cancellations, weather, keys=["flight_row"])
def grounded(cancellations: DataFrame, weather: DataFrame) -> DataFrame:
    """Each cancelled flight with the weather at its airport in that hour; reports that come a week late are dropped."""
    reports = cancellations.withWatermark("at", "7 days")
    hours = weather.withWatermark("at", "7 days")
    cause = pipelines.joined_cause(reports, hours)
    return reports.join(hours, ["origin", "at"]).select(
        "flight_row", "origin", "at", "carrier", "flight", "wind", "visibility", cause
    )
