"""A product's process that is killed, interrupted and kept waiting, at points that a seed says.

usage: product.py APPORTION TOKEN VENDOR SPOOL SEED ROUNDS
It forks a child for each round, which makes calls until its fate overtakes it; every call that
came back says so on standard output: `id answered` or `id refused`.
"""

import os
import random
import signal
import sys

import anthropic
import httpx2 as httpx
import openai

from apportion import Apportion
from vendor import INPUT, OUTPUT

url, token, vendor, spool, seed, rounds = sys.argv[1:]
TIMEOUT = 0.25
# Built once: what children share is code, not connections.
clients = [openai.OpenAI(base_url=f"{vendor}/v1", api_key="k", timeout=TIMEOUT),
           anthropic.Anthropic(base_url=vendor, api_key="k", timeout=TIMEOUT)]
PROMPTS = ["ok"] * 12 + ["break", "hang up", "stall", "status 529", "status 400", "status 500"]


class Interrupted(BaseException):
    pass


def overtaken(fate, after):
    """Kills or interrupts after that many calls of functions, wherever that is."""
    left = after

    def count(_frame, event, _):
        nonlocal left
        left -= event == "call"
        if left == 0:
            if fate == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(count)


def say(*words):
    os.write(1, (" ".join(words) + "\n").encode())


def call(quota, chance, id):
    prompt = chance.choice(PROMPTS)
    asked = {"model": "m", "max_tokens": OUTPUT, "stream": chance.random() < 0.6,
             "messages": [{"role": "user", "content": f"{prompt}|{id}"}]}
    known = {"request_id": id, "input_tokens": INPUT}
    wants = chance.choice([99, 99, 99, chance.randrange(8)])  # events, before the reader hangs up
    try:
        if chance.random() < 0.5:
            answer = quota.openai(clients[0], "u").chat.completions.create(**asked, **known)
        else:
            answer = quota.anthropic(clients[1], "u").messages.create(**asked, **known)
        if asked["stream"]:
            with answer:
                for number, _ in enumerate(answer):
                    if number == wants:
                        return
        say(id, "answered")
    except (openai.APIStatusError, anthropic.APIStatusError) as refused:
        say(id, "refused" if refused.status_code != 500 else "unsure")
    except (openai.APIError, anthropic.APIError, httpx.HTTPError):
        say(id, "unsure")


def child(number):
    chance = random.Random(f"{seed}-{number}")
    quota = Apportion(url, token, spool=spool, timeout=5.0, tries=4, sleep=lambda _: None)
    fate = chance.choice(["kill", "kill", "interrupt", "none"])
    if fate != "none":
        overtaken(fate, chance.randrange(1, 30_000))
    try:
        for part in range(4):
            call(quota, chance, f"{seed}-{number}-{part}")
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)


for number in range(int(rounds)):
    pid = os.fork()
    if pid == 0:
        try:
            child(number)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    say(f"{seed}-{number}", "killed" if os.WIFSIGNALED(status) else "ended")
