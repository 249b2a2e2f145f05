"""Rows of a task: tables, their columns, labelled examples."""
