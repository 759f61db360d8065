#!/usr/bin/env python3
"""What lies between one request's last step and the next one's first, from a timeline of `mstar serve --profile trace=FILE` under one client.

    request_gaps.py FILE [--first encoder] [--last decoder]

The thread of the step loop sleeps between messages, so each sleep says how long all the others took: with Whisper the first ends with the removal of
the old request (text, answer, and the client's next one on its way), the second with the new request (its body read), the third with its mels.
"""
import argparse
import json
import statistics
import sys


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--first", default="encoder")
    parser.add_argument("--last", default="decoder")
    args = parser.parse_args()
    events = json.load(open(args.file))
    events = events["traceEvents"] if isinstance(events, dict) else events
    phases = sorted((e for e in events if e.get("ph") == "X" and e["pid"] == 0), key=lambda e: e["ts"])
    flights = sorted((e["ts"], e["ph"], e["name"]) for e in events if e.get("ph") in ("b", "e") and e["pid"] == 0)
    gaps, ended = [], None
    for when, kind, name in flights:
        if kind == "e" and "/%s:" % args.last in name:
            ended = when
        elif kind == "b" and "/%s:" % args.first in name and ended is not None:
            gaps.append((ended, when))
            ended = None
    if not gaps:
        sys.exit("the trace has no gap between two requests")
    print("%d gaps, median %.0f us from the last step read to the first launched" % (len(gaps), statistics.median(e - b for b, e in gaps)))
    rows = []
    for begin, end in gaps:
        row, at = [], begin
        for each in phases:
            if begin <= each["ts"] < end and each["name"] in ("idle", "gather", "replay", "forward"):
                row.append((each["name"], each["ts"] - at, each["dur"]))
                at = each["ts"] + each["dur"]
        rows.append(row)
    shape = statistics.mode(tuple(name for name, *_ in row) for row in rows)
    alike = [row for row in rows if tuple(name for name, *_ in row) == shape]
    print("%d of them alike; medians in us: other work of the loop before, then the phase" % len(alike))
    for i, name in enumerate(shape):
        print("  %8.0f  %-8s %8.0f" % (statistics.median(row[i][1] for row in alike), name, statistics.median(row[i][2] for row in alike)))


if __name__ == "__main__":
    main()
