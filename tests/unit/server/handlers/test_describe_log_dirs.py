"""Whatever tells a log directory names it the same way, wherever the node was started."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess

from duramen.config import load_broker_config
from duramen.errors import ErrorCode
from duramen.server.main import data_directories
from duramen.wire.messages import API


@pytest.mark.parametrize("path", ["/data", "/data/", "data", "./data", "../srv/data/"])
def test_a_relative_directory_is_told_whole_and_found_by_both_names(path: str) -> None:
    server = InProcess()
    server.broker.segments.working_directory = "/srv"
    line = server.connect()
    line.create_topic("t")
    server.broker.store.directories[0].path = path
    told = line.call(35, 1, topics=None).results[0].log_dir
    assert line.call(10020, 0).directories[0].log_dir == told, "DescribeDamage"
    started = load_broker_config(None, {"log.dirs": f"{path},x"})
    assert data_directories(started, "/srv") == f"{told}, /srv/x", "the line that says it is ready"
    assert told == ("/data" if path.startswith("/") else "/srv/data")
    request = API[34].request
    for name in (told, path):
        topic = request.AlterReplicaLogDirTopic(name="t", partitions=[0])
        answer = line.call(34, 2, dirs=[request.AlterReplicaLogDir(path=name, topics=[topic])])
        assert answer.results[0].partitions[0].error_code == ErrorCode.NONE, name
