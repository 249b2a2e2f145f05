"""Readers of users' files without torch, shared by the plan on the laptop and the job."""
