"""Run by tasks/clean_process.py in a process of its own: load a version as who serves it would, and ask it.

It reads a line {"folder": ..., "requests": [...]} and writes a line {"answers": [...]} or {"error": "why not"}. In it
nothing of Jali can be imported: what a version needs travels with it.
"""

import json
import os
import sys

JALIS = ("flows", "tasks", "models", "expectations", "serving")


class NotHere:
    """An installed Jali is as good as none."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in JALIS:
            raise ImportError(f"{name}: nothing of Jali is here")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the version prints is no answer
    sys.meta_path.insert(0, NotHere())
    import mlflow.pyfunc  # while whoever started this finds out what to load

    asked = sys.stdin.readline()
    if not asked:
        return
    answer: dict[str, object]
    try:
        told = json.loads(asked)
        model = mlflow.pyfunc.load_model(told["folder"])
        found = [model.predict([request]).to_dict("records")[0] for request in told["requests"]]
        answer = {"answers": found}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, answers, default=lambda array: array.tolist())
    answers.flush()


main()
