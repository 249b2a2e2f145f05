"""A job of a tenth of a second that reports metrics, computed from its settings, to MLflow and metrics.jsonl.

python -S cloud_trial.py --config FILE --set optimizer.learning_rate=0.01 --set train.steps=3 --output FOLDER

Report k is 1000 x learning_rate + 1 / k + seed % 7 / 1000; the last term is 0 for 42, the default seed of the recipes.
With a learning rate of at least 1, the job runs on after its last report until it is killed; at 100 it fails. It needs
only the standard library, so it starts immediately.
"""

import json
import os
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

METRIC = "validation_loss"
LASTS, FAILS = 1, 100


def settings() -> dict[str, object]:
    """Return the settings of command line and config file: dotted name -> value; text where it is not JSON."""
    words = sys.argv[1:]
    found: dict[str, object] = {}
    for flag, value in pairwise(words):
        if flag == "--config":
            document = json.loads(Path(value).read_text())
            found |= {f"{name}.{key}": one for name in ("optimizer", "train") for key, one in document[name].items()}
        elif flag == "--set":
            name, _, text = value.partition("=")
            try:
                found[name] = json.loads(text)
            except ValueError:
                found[name] = text
        elif flag == "--output":
            found["output"] = value
    return found


def log(name: str, value: float, step: int) -> None:
    """Log a metric to MLflow."""
    run, now = os.environ["MLFLOW_RUN_ID"], int(1000 * time.time())
    point = {"run_id": run, "key": name, "value": value, "step": step, "timestamp": now}
    request = urllib.request.Request(
        f"{os.environ['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/runs/log-metric",
        data=json.dumps(point).encode(),
        headers={"Authorization": f"Bearer {os.environ['MLFLOW_TRACKING_TOKEN']}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).read()


def main() -> int:
    """Run the job."""
    values = settings()
    rate, steps = float(str(values["optimizer.learning_rate"])), int(str(values.get("train.steps", 2)))
    output, seed = Path(str(values["output"])), int(str(values.get("train.seed", 0)))
    (output / "model").mkdir(parents=True, exist_ok=True)
    (output / "model" / "settings.json").write_text(json.dumps(values))
    print(f"learning rate {rate}", flush=True)
    if rate >= FAILS:
        return 3
    for step in range(1, steps + 1):
        value = 1000 * rate + 1 / step + seed % 7 / 1000
        with (output / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": step, "time": time.time(), "metrics": {METRIC: value}}) + "\n")
        log(METRIC, value, step)
    while rate >= LASTS:
        time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
