"""The metadata quorum on the network: what raft says to other nodes, in Kafka's messages."""
