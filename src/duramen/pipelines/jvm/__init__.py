"""The JVM and the Spark session that a pipeline runs in."""
