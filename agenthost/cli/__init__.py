"""The command line: `agenthost` and `agenthost-codex`.

Everything here is presentation and dispatch; what a Session is and does lies in `agenthost.session`. Modules at this
level import what is heavy only inside the function that needs it: a launch pays for nothing that it does not use.
"""
