"""The records that Duramen writes into its own topics and batches, in Kafka's formats.

metadata: `__cluster_metadata` · offsets: `__consumer_offsets` · control: control batches · consumer: what classic
consumers put into JoinGroup and SyncGroup.
"""
