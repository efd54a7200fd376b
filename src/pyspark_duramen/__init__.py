"""Found by Spark through its name: hands on the data source, so that `format("duramen")` needs no register call."""

from duramen.spark.datasource import DuramenDataSource as DefaultSource

__all__ = ["DefaultSource"]
