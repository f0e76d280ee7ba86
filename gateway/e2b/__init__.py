"""E2B's face: E2B's SDKs, unchanged, use threads as their sandboxes.

Start at `rest.py` for sandboxes and at `envd_calls.py` for what is done in them; docs/e2b.md says what differs from
E2B. What is done in a sandbox goes through the services, and so the tool path. Imports gateway layers below 16,
agent, airlock and sandbox.

- `face`: the routes of both faces, and the work that they have of their own.
- `rest`, `requests`, `views`: the REST face, its bodies and its answers.
- `egress`, `egress_rules`: network rules, asked for and as rules of the thread.
- `lifecycle`, `open_streams`: sandboxes from their creation to their end, which comes in time; their streams.
- `access`: keys, access tokens and signed URLs.
- `envd_face`, `envd_calls`, `envd_call`: requests to a sandbox: found, authenticated and answered.
- `process_rpc`, `output_events`: commands and terminals.
- `filesystem_rpc`, `watching`, `directory_watcher`: files, and what happens to them.
- `code_interpreter`: run_code and its contexts.
- `file_transfer`, `uploads`: downloads and uploads.
- `paths`: the home directory.
- `errors`: errors as the SDKs read them.
- `envd/`: generated stubs of proto/gateway/e2b/envd.
"""
