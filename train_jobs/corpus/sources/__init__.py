"""Text out of files of every kind, one document at a time, in parts that are worked on side by side.

A part is the unit of work: a group of small files, a file, or a range of a large one that begins and ends between two
documents. Parts follow from the input alone, never from how many processes or nodes share them, and the documents of
all parts, in order, are those of reading every file from its beginning to its end.
"""
