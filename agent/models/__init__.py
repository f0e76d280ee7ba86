"""Models: the protocol, OpenAI-compatible endpoints, scripted ones for tests, and inference with any of them.

    model                                           the protocol
    inference, metered_model                        one inference: its events and times; what its attempts cost
    token_estimates                                 tokens of a message or a request, where no endpoint counts them
    fallback_model                                  asks the next model while one is unavailable
    openai_model                                    an endpoint as a model: sends, adapts, reads the answer
    settings                                        what a request asks for, and how the endpoint is reached
    endpoint, bounded_http                          the connection, bounded; every failure becomes a ModelError
    endpoint_errors, endpoint_meanings              what an endpoint complains about, what that means, what to change
    chat_request, chat_completions                  chat completions: requests, answers
    responses                                       the Responses API: requests, answers
    tool_names                                      names of tools as endpoints accept them
    shown_message, provider_data                    attached files in a message; reasoning that an endpoint wants back
    reported_usage, prices                          usage as reported or estimated, and its cost
    model_check                                     `airlock model check`
    scripted_model, scripted_model_server, scripted_responses  a script in place of a model

Start at `model.py` and `inference.py`. Imports agent layers below 8.
"""
