"""An HTTP server for models: OpenAI's API over the batching engine, and the project's own tasks.

A request passes through these files, in this order:

1. `http_server.py` is the process: sockets, signals, and time limits of connections.
2. `http_app.py` is the application. Its middleware logs (`access_log.py`), checks keys (`api_keys.py`), and limits
   rates (`rate_limit.py`) and bodies (`body_limit.py`).
3. An endpoint (`*_endpoint.py`) reads the request (`openai_schemas.py`, `task_schemas.py`) and answers it, whole or
   as a stream of events (`event_stream.py`).
4. `served_models.py` lends the endpoint a model, which it loads if necessary.
5. `compute_thread.py` is the thread that computes: it steps the engine of each model, and tells the endpoint what was
   written (`engine_run.py`).

Nothing here is imported by other verbs than `serve`, and importing this package imports nothing.
"""
