"""/docs: one page that needs nothing from anywhere else. /openapi.json has all there is, for programs."""

from __future__ import annotations

import base64
import hashlib

STYLE = "body{font:16px/1.5 sans-serif;max-width:48em;margin:2em auto;padding:0 1em}pre{background:#eee;padding:1em;\
overflow:auto}td{padding:.2em 1em .2em 0;vertical-align:top}"

PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Jali</title><style>{STYLE}</style>
<h1>Jali</h1>
<p>Recommendations from a release under differential privacy. Send your own ratings; nothing of them is kept or
logged.</p>
<h2>Ask</h2>
<pre>curl -H 'Content-Type: application/json' -d '{{"ratings": [{{"item": "50", "rating": 5}}], "n": 10}}' \\
     http://ADDRESS/recommend
curl -H 'Content-Type: application/json' -d '{{"ratings": [{{"item": "50", "rating": 5}}], "items": ["1"]}}' \\
     http://ADDRESS/predict</pre>
<p>The answer:</p>
<pre>{{"items": [{{"item": "...", "title": "...", "rating": 4.5}}, ...], "ignored": 0, "unknown": [], "note": null,
 "model": {{"name": "...", "version": "1"}}}}</pre>
<p><code>ignored</code> own ratings were of items outside the catalogue; <code>unknown</code> are the items asked for
that are outside it. Without ratings the answer is what most people like. What cannot be answered has a status of 400
or more and the body <code>{{"error": {{"status": 422, "message": "..."}}}}</code>.</p>
<h2>Look</h2>
<table>
<tr><td><a href="/guarantee">/guarantee</a><td>what is promised to those whose ratings were learned from
<tr><td><a href="/release/release.json">/release/release.json</a><td>catalogue, scale and fold-in weights
<tr><td><a href="/release/items.safetensors">/release/items.safetensors</a><td>the item factors: with both files and
<code>release.py</code> nobody need send ratings anywhere
<tr><td><a href="/readyz">/readyz</a>, <a href="/healthz">/healthz</a>, <a href="/metrics">/metrics</a><td>for those
who run it
<tr><td><a href="/openapi.json">/openapi.json</a><td>all of this for programs
</table></html>
"""

_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_POLICY = f"default-src 'none'; style-src 'sha256-{_DIGEST}'; frame-ancestors 'none'"
