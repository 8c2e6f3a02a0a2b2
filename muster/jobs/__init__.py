"""Job pools: finite work on workers that exist only while there is work."""

from muster.jobs.connection import connect
from muster.jobs.model import (
    Counts,
    Finished,
    JobStatus,
    NewJob,
    PoolSettings,
    Verdict,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    WorkerStatus,
    WorkItem,
)
from muster.jobs.ports import Jobs, RegistrationBackend, WorkBackend, WorkPool

__all__ = [
    "Counts",
    "Finished",
    "JobStatus",
    "Jobs",
    "NewJob",
    "PoolSettings",
    "RegistrationBackend",
    "Verdict",
    "WorkBackend",
    "WorkItem",
    "WorkPool",
    "WorkerFilter",
    "WorkerRecord",
    "WorkerRegistration",
    "WorkerStatus",
    "connect",
]
