"""The small files of a log directory: Kafka's checkpoints, the manifest, snapshots, recorded losses."""
