#!/usr/bin/env python3
"""Cuts the recorded agent sessions of kv-cache-tester down to what `tandem bench --trace` reads:

    make_agent_sessions.py < agent_sessions.jsonl | zstd -19 -o agent_sessions.jsonl.zst

Every fourth session, the first 40 requests of it and of each sub-agent; lengths, block ids and thinking times only."""

import json
import sys

EVERY, REQUESTS = 4, 40


def slim(session):
    kept = []
    for request in session["requests"]:
        if "requests" in request:
            kept.append({"requests": slim(request)["requests"]})
        elif sum("in" in each for each in kept) < REQUESTS:
            kept.append({"in": request["in"], "out": request["out"], "blocks": request["blocks"], "think_time": request["think_time"]})
    return {"block_size": session.get("block_size", 64), "requests": kept}


for number, line in enumerate(sys.stdin):
    if number % EVERY == 0:
        print(json.dumps(slim(json.loads(line)), separators=(",", ":")))
