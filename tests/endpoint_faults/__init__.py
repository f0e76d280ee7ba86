"""The faults of endpoints and of what stands before them: of connections, of HTTP, of answers, and complaints."""

from tests.endpoint_faults.answers import ANSWERS
from tests.endpoint_faults.complaints import COMPLAINTS
from tests.endpoint_faults.connections import CONNECTIONS, PROXIES, TLS
from tests.endpoint_faults.http import HTTP

FAULTS = (*CONNECTIONS, *TLS, *PROXIES, *HTTP, *ANSWERS, *COMPLAINTS)
