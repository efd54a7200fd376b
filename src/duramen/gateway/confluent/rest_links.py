"""Addresses of resources of the API, absolute, and their names. Pure."""

from __future__ import annotations

from urllib.parse import quote

import msgspec


class Related(msgspec.Struct):
    """Where something that belongs to a resource is."""

    related: str


class ResourceMetadata(msgspec.Struct):
    """Where a resource is, and its name among all."""

    self: str
    resource_name: str


class ListMetadata(msgspec.Struct):
    """Where a list is; it is given whole, so nothing is next."""

    self: str
    next: str | None = None


class RestLinks:
    """The addresses of one cluster's resources. origin: scheme and host by which the gateway was asked."""

    def __init__(self, origin: str, cluster_id: str) -> None:
        self._clusters = f"{origin}/v3/clusters"
        self._name = f"crn:///kafka={cluster_id}"
        self.cluster_id = cluster_id

    def url(self, *parts: str | int) -> str:
        """Of what these parts of a path name below the cluster; without any, of the cluster."""
        return "/".join((self._clusters, *(quote(str(part), safe="-:") for part in (self.cluster_id, *parts))))

    def related(self, *parts: str | int) -> Related:
        """As `url`."""
        return Related(self.url(*parts))

    def metadata(self, parts: tuple[str | int, ...], *names: tuple[str, str | int]) -> ResourceMetadata:
        """Of the resource at this path, whose name is made of kinds and names."""
        name = "/".join((self._name, *(f"{kind}={of}" for kind, of in names)))
        return ResourceMetadata(self.url(*parts), name)

    def listed(self, *parts: str | int) -> ListMetadata:
        """Of a list at this path."""
        return ListMetadata(self.url(*parts))

    def clusters(self) -> ListMetadata:
        """Of the list of clusters."""
        return ListMetadata(self._clusters)
