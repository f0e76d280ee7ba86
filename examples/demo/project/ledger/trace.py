"""Books the sample year and shows every entry beside the bank's balance. Run python3 -m ledger.trace."""

from ledger.entries import parse_entry
from ledger.money import format_cents
from ledger.sample import bank_year


def main() -> None:
    """Print one line for each entry, and how many of them moved our balance by another sum than the bank's."""
    ours_cents, bank_before_cents, differing, number = 0, 0, 0, 0
    for number, (line, bank_cents) in enumerate(bank_year(), start=1):
        entry = parse_entry(line)
        ours_cents += entry.cents
        moved_cents, bank_before_cents = bank_cents - bank_before_cents, bank_cents
        remark = "ok"
        if entry.cents != moved_cents:
            differing += 1
            remark = f"booked {format_cents(entry.cents)}, but the bank moved {format_cents(moved_cents)}"
        print(f"{number:>5} {line:<52} balance {format_cents(ours_cents):>14}  {remark}")
    print(f"{number} entries, {differing} booked otherwise than by the bank")
    print(f"our balance {format_cents(ours_cents)}, the bank's {format_cents(bank_before_cents)}")


if __name__ == "__main__":
    main()
