"""The campaign against faults: real submissions, faults at random moments, and a count of the promises that hold.

    python -m tests.faults.campaign --minutes 9        # `make faults`: resumes where the last slice ended
    python -m tests.faults.campaign --page             # write docs/faults.md from the results

A trial submits a job of one kind as a user does, in a home of its own. A fault happens at a moment drawn uniformly from
the duration of an undisturbed run, start-up and end included. Then a user's commands bring the job to its end:
`resume`, or the same `submit` where no run exists yet. Results are lines of results.jsonl.
"""
