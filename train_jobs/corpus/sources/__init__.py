"""Readers of all supported formats, which yield one document at a time, and parts that are processed in parallel.

A part is the unit of work: a group of small files, a file, or a range of a large one that begins and ends between two
documents. Parts depend only on the input, never on the number of processes or nodes. The documents of all parts, in
order, are the documents of all files, in order.
"""
