"""The model that docs/capacity.md gets its figures from: `python -m tests.simulation` prints its tables.

    costs                       what things cost: counts, measured times, assumptions
    events                      the simulation: processes, time, queues
    gateways                    gateways that share a database
    calls, takeover, burst      what is simulated: steady calls, losses, claims
    ends                        which resource ends first
    report                      the tables
    measuring, validation       costs measured here, and the model beside a real gateway
    counted_gateway             a real gateway whose statements are noted
    written_calls               a call as the journal writes it

test_counts compares the counts with the code, test_model the page with the model.
"""
