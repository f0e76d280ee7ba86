import datetime as dt
import unittest

from ledger.entries import Entry, parse_entry, parse_export
from ledger.sample import bank_year


class Entries(unittest.TestCase):
    def test_a_line_becomes_an_entry(self):
        entry = parse_entry("2024-05-31;groceries;-12.05;corner shop")
        self.assertEqual(entry, Entry(dt.date(2024, 5, 31), "groceries", -1205, "corner shop"))

    def test_comments_and_empty_lines_are_skipped(self):
        self.assertEqual(len(parse_export("# May\n\n2024-05-02;income;900.00;invoice\n")), 1)

    def test_a_line_with_a_missing_field_is_refused(self):
        with self.assertRaisesRegex(ValueError, "3 fields, not 4"):
            parse_entry("2024-05-31;groceries;-12.05")

    def test_a_year_of_entries_adds_up_to_the_balance_of_the_bank(self):
        year = list(bank_year())
        balance_cents = sum(parse_entry(line).cents for line, _ in year)
        self.assertEqual(balance_cents, year[-1][1], "run python3 -m ledger.trace to see every entry")
