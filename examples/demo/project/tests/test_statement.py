import datetime as dt
import unittest

from ledger.entries import parse_export
from ledger.statement import make_statement, render

EXPORT = """
2024-04-30;income;900.00;invoice
2024-05-01;rent;-400.00;May
2024-05-31;groceries;-12.05;corner shop
2024-06-01;groceries;-8.00;market
"""


class Statements(unittest.TestCase):
    def setUp(self):
        self.may = make_statement(parse_export(EXPORT), dt.date(2024, 5, 1), dt.date(2024, 5, 31))

    def test_the_opening_balance_is_what_came_before(self):
        self.assertEqual(self.may.opening_cents, 90000)

    def test_the_last_day_belongs_to_the_period(self):
        self.assertEqual([entry.memo for entry in self.may.entries], ["May", "corner shop"])

    def test_the_closing_balance_ends_the_statement(self):
        self.assertEqual(render(self.may).splitlines()[-1], "closing         487.95")
