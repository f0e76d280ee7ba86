"""The agent: a loop made of hooks, its tools and its model drivers. A pure library; see ARCHITECTURE.md."""
