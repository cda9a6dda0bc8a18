"""Options that commands which read sweeps have in common."""

from __future__ import annotations

import argparse


def add_tracking_uri(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="read the records that were sent to this MLflow server or sqlite:/// store, in place of those in runs/; "
        "sweeps are given by NAME",
    )
