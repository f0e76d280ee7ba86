import unittest

from ledger.money import format_cents, parse_cents


class Money(unittest.TestCase):
    def test_thousands_may_be_separated(self):
        self.assertEqual(parse_cents("1,234.50"), 123450)

    def test_cents_of_a_negative_amount_are_negative_too(self):
        self.assertEqual(parse_cents("-12.05"), -1205)

    def test_half_a_fraction_is_refused(self):
        with self.assertRaisesRegex(ValueError, "two digits after the point"):
            parse_cents("3.5")

    def test_an_amount_is_written_as_it_is_read(self):
        self.assertEqual(format_cents(parse_cents("-1,000.07")), "-1,000.07")
