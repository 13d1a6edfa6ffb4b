"""Fast-MoCo: momentum contrast with combinatorial patches, and every row of its paper as a value."""

__version__ = "0.1.0"
