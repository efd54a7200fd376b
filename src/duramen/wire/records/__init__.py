"""The records that Duramen writes into its own topics and batches, in Kafka's formats unless said otherwise.

metadata: `__cluster_metadata` · offsets: `__consumer_offsets` · transactions: `__transaction_state` · sinks:
`__duramen_sink_state`, in a format of our own · control: control batches · consumer: what classic consumers put into
JoinGroup and SyncGroup.
"""
