"""Helpers of the suites that are imported only where they are used."""
