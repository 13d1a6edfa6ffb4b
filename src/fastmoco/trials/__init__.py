"""Trainings of a sweep: one in a process of its own, many at work, and what they came to as tables and figures."""
