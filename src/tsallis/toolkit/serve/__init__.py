"""A server of runs: a page and a JSON API on Starlette, for the command `tsallis serve`.

limits.py     limits of requests, and the error for rejected requests
requests.py   JSON schemas of requests
answers.py    answers of a run: searches, completions, steps, attention, description
worker.py     the thread that runs models, with a queue that batches compatible searches
app.py        URLs, headers and errors
page.py       files of the page
server.py     sockets and signals
"""
