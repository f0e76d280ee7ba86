"""What calls and runs write: threads, runs with their events, and the journal of calls."""

from gateway.storage.call_journal import CallJournal
from gateway.storage.run_queries import RunQueries
from gateway.storage.thread_queries import ThreadQueries


class Store(ThreadQueries, RunQueries, CallJournal):
    """Typed access to the database, with one group of queries in each file."""
