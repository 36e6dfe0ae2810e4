"""Imported by the fork server alone: a signal to the whole process group must not end it before its trials.

It would take the launcher's view of them with it; it ends by itself when the launcher and all trials have.
"""

import signal

for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(_number, signal.SIG_IGN)
