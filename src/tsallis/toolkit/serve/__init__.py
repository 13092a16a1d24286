"""A server of runs: a page and a JSON API on Starlette, for the command `tsallis serve`.

limits.py     how much a request may ask for, and the error of one that asks for more
requests.py   the requests, as JSON holds them
answers.py    what a run answers: searches, completions, steps, attention, facts
worker.py     the thread that runs models: requests wait in a queue, equal searches are made together
app.py        addresses, headers and errors
page.py       the page's files
server.py     sockets and signals
"""
