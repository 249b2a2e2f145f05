"""Ask for points, submit trials, watch them, report to the study."""
