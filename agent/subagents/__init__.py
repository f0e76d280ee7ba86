"""Running subagents: what they are lent, what their family spends, and those that go on in the background."""
