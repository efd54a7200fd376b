"""The session of a page: its token in a cookie, because an EventSource sends no headers of its own."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from duramen.gateway.access.authenticator import token_in
from duramen.gateway.routes.route import COOKIE, Handler


class SessionRequests:
    """POST keeps the token that the request has, DELETE forgets it. The gateway itself keeps nothing."""

    def handlers(self) -> Mapping[str, Handler]:
        """By operation."""
        return {"openSession": self._open, "closeSession": self._close}

    async def _open(self, request: Request) -> Response:
        token = token_in(request.headers)
        response = Response(status_code=204)
        if token is not None:  # else nobody has to log in here
            self._keep(request, response, token)
        return response

    async def _close(self, request: Request) -> Response:
        response = Response(status_code=204)
        self._keep(request, response, "")
        return response

    def _keep(self, request: Request, response: Response, token: str) -> None:
        response.set_cookie(
            COOKIE,
            token,
            max_age=None if token else 0,
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
