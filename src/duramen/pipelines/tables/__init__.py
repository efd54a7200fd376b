"""Stores of tables: Delta and Parquet, changelogs, differences between versions."""
