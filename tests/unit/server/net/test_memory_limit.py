"""The memory that a process may use, read from what a kernel shows of its control groups."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from duramen.server.net.memory_limit import REPLY_BYTES, REQUEST_BYTES, memory_limit, memory_shares

MIB = 1024 * 1024


def made(root: Path, groups: str, **bounds: str) -> Path:
    """A root with this /proc/self/cgroup and these files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in bounds.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_max", ".max").replace("_limit", ".limit")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def test_without_control_groups_it_is_the_machines_memory(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) > 512 * MIB


def test_v2_takes_the_smallest_bound_on_the_way_up(tmp_path: Path) -> None:
    root = made(tmp_path, "0::/a/b\n", a__b__memory_max="max", a__memory_max=str(256 * MIB), memory_max=str(300 * MIB))
    assert memory_limit(root) == 256 * MIB


def test_v2_inside_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    root = made(tmp_path, "0::/../docker/4711\n", memory_max=str(128 * MIB))
    assert memory_limit(root) == 128 * MIB


def test_v1_looks_at_the_controller_of_memory_alone(tmp_path: Path) -> None:
    bound = {"memory__x__memory_limit_in_bytes": str(200 * MIB), "memory__memory_limit_in_bytes": str(2**63 - 4096)}
    root = made(tmp_path, "5:cpu:/y\n4:hugetlb,memory:/x\n", memory__y__memory_limit_in_bytes="4096", **bound)
    assert memory_limit(root) == 200 * MIB


@pytest.mark.parametrize("text", ["", "max", "many", "-1", "0"])
def test_what_is_no_bound_does_not_count(tmp_path: Path, text: str) -> None:
    assert memory_limit(made(tmp_path, "0::/\n", memory_max=text)) > 512 * MIB


@pytest.mark.parametrize(("kind", "bound"), [("AS", 600), ("DATA", 328)])
def test_limits_on_address_space_and_data_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, bound: int
) -> None:
    limited = getattr(resource, f"RLIMIT_{kind}")
    none = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (bound * MIB if which == limited else none, none))
    assert memory_limit(tmp_path) == 280 * MIB


def test_a_large_machine_has_the_full_shares_and_a_small_one_keeps_room_for_itself() -> None:
    large = memory_shares(8192 * MIB)
    assert (large.requests, large.replies) == (REQUEST_BYTES, REPLY_BYTES)
    for limit in (64 * MIB, 128 * MIB, 256 * MIB):
        small = memory_shares(limit)
        assert 1 * MIB <= small.replies < small.requests <= limit // 4


def test_a_persons_own_bound_of_requests_holds() -> None:
    assert memory_shares(8192 * MIB, 200 * MIB).requests == 200 * MIB
    assert memory_shares(8192 * MIB, -1).requests == REQUEST_BYTES
