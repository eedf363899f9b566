"""The notebook that a newcomer reads does what it says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parents[1] / "docs" / "tour.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own
def test_the_tour_runs_from_start_to_end(tmp_path: Path, shared_prefect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", shared_prefect)
    for name in ("MLFLOW_TRACKING_URI", "JALI_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    tour = nbformat.read(TOUR, 4)
    kept = [[output.output_type for output in cell.outputs] for cell in tour.cells if cell.cell_type == "code"]
    client = NotebookClient(tour, timeout=240, resources={"metadata": {"path": str(tmp_path)}}, coalesce_streams=True)
    client.execute()  # raises for a cell that fails
    ran = [cell for cell in tour.cells if cell.cell_type == "code"]
    assert [[output.output_type for output in cell.outputs] for cell in ran] == kept  # what readers see was run
    assert "'model': {'name': 'tour.serving', 'version': '1'}" in ran[-1].outputs[-1].data["text/plain"]
