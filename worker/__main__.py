"""`python -m worker`: a user's worker (MUSTER_USER and MUSTER_EPOCH set), else a pool worker.
`python -m worker jobs ...`: a job worker."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["jobs"]:
        from worker.jobs import main as jobs_main

        sys.exit(jobs_main(sys.argv[2:]))
    from worker.boot import main

    sys.exit(main())
