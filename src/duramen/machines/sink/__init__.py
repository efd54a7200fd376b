"""The sink machine: the broker's half of an exactly-once sink, behind `__duramen_sink_state`."""

from duramen.machines.sink.machine import SinkMachine
from duramen.machines.sink.settings import SinkSettings

__all__ = ["SinkMachine", "SinkSettings"]
