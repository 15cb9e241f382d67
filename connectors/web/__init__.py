"""The edge to other people's HTTP services, shared by the connectors that need one."""

from connectors.web.answers import is_html, json_of, results_of
from connectors.web.faults import FOREIGN, AnswerTooLarge, ServerFault, translate
from connectors.web.limiter import LocalRequestLimiter, RequestLimiter, RequestLimits
from connectors.web.session import Access, GuardedAdapter, guard, open_session

__all__ = [
    "FOREIGN",
    "Access",
    "AnswerTooLarge",
    "GuardedAdapter",
    "LocalRequestLimiter",
    "RequestLimiter",
    "RequestLimits",
    "ServerFault",
    "guard",
    "is_html",
    "json_of",
    "open_session",
    "results_of",
    "translate",
]
