"""Clusters of Azure, their sizes and prices."""
