"""Answers as spans of a text: SQuAD 1.1 (Rajpurkar et al. 2016) and 2.0 (2018), whose questions may have none."""
