"""One partition and all of them: replication, log and journal together; shared by the server and embedded logs."""
