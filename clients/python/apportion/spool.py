"""What Apportion has not been told yet: a bounded list, kept in a folder over restarts.

Every process writes a file of its own and holds a lock on it; files of processes that are gone are
taken over. A degraded call is written down before it goes out, with what it may use at most, and
again with what it used. So if the process dies in between, the most is booked: it is never free.
"""

import fcntl
import json
import os
import threading
import uuid


class Spool:
    def __init__(self, folder, most):
        self._folder, self._most, self._lock, self._file = folder, most, threading.Lock(), None
        self.entries, self._running = {}, set()
        if folder:
            os.makedirs(folder, exist_ok=True)
            # Another may take a new file over before it is locked.
            tries = (self._lease(os.path.join(folder, f"{uuid.uuid4()}.jsonl")) for _ in range(9))
            self._file = next(filter(None, tries), None)
            if self._file is None:
                raise OSError(f"nothing can be kept in {folder}")
            self.adopt()

    def end(self, key, used, at_least):
        """It ended: with what it used, or nobody knows and the most is booked."""
        most = self.entries[key]["tell"][-1]
        most["output_tokens"] = max(most["output_tokens"], at_least)
        kept = {k: most[k] for k in most if k not in ("input_tokens", "output_tokens", "outcome")}
        self.put(key, {"tell": [kept | used, most] if used else [most]})

    def done(self, key):
        with self._lock:
            self._running.discard(key)
            if self.entries.pop(key, None) is not None:
                self._write(key, None)
                if not self.entries and self._file:
                    self._file.truncate(0)

    def pending(self):
        """What can be told: all but calls that run."""
        self.adopt()
        with self._lock:
            return [(key, entry) for key, entry in self.entries.items() if key not in self._running]

    def adopt(self):
        """Takes over what processes left that are gone."""
        for name in os.listdir(self._folder) if self._folder else ():
            path = os.path.join(self._folder, name)
            if path == self._file.name or (file := self._lease(path)) is None:
                continue
            with file, self._lock:
                # A line without an end: whoever wrote it was killed in the middle.
                lines = (line for line in file.read().splitlines(True) if line.endswith("\n"))
                left = dict(map(json.loads, lines))
                for key in (key for key in left if left[key] is not None):
                    self.entries[key] = left[key]
                    self._write(key, left[key])
                os.remove(path)

    def put(self, key, entry, running=False):
        """Keeps what is to be told, or a degraded call that goes out. False: there is no room."""
        with self._lock:
            if key not in self.entries and len(self.entries) >= self._most:
                return False
            self.entries[key] = entry
            (self._running.add if running else self._running.discard)(key)
            self._write(key, entry)
            return True

    def _write(self, key, entry):
        if self._file:
            print(json.dumps([key, entry], default=str), file=self._file, flush=True)
            os.fsync(self._file.fileno())

    @staticmethod
    def _lease(path):
        """The file, locked and for this account only; None while another process has it."""
        try:
            file = open(path, "a+", encoding="utf-8", opener=lambda name, how: os.open(name, how, 0o600))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.seek(0)
            return file if os.path.exists(path) else None
        except OSError:
            return None
