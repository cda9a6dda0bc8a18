"""Tags by which sweeper recognises its runs in MLflow."""

KIND, SWEEP, TRIAL = "sweeper.kind", "sweep", "trial_id"
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"  # MLflow's pages know these two
# Digests of what a run shows, so that nothing is sent twice.
RECORD, REPORT, MANIFEST, OVERVIEW = "sweeper.record", "sweeper.report", "sweeper.invocations", "sweeper.overview"
