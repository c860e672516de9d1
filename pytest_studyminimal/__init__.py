"""Controlled studies of coding agents, run by pytest."""

__version__ = "0.1.0"
